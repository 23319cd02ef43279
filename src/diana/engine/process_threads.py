"""The threads that an evaluator needs in each process: one follows changes of the rules, one measures the load."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from os import getpid
from weakref import ReferenceType, ref

from diana.core.contracts import Observer
from diana.core.policy import Settings
from diana.shedding.gauge import GaugeState
from diana.shedding.load_shedder import Shedding
from diana.shedding.sampling import ProcessActivity


class ProcessThreads:
    """A forked child has no thread of its parent, so they are started anew at the first request of each process."""

    def __init__(self) -> None:
        self.pid = 0
        """The process in which they run; 0: they are to be started."""
        self.follow: Callable[[], bool] = lambda: True
        """Follows changes of the rules in this process; returns whether it does."""
        self._shedding = Shedding()
        self.shedding: Shedding | None = None
        """None: nothing is ever shed."""
        self.activity: ProcessActivity | None = None
        """Counts the requests in flight; None: no factor needs that."""

    def enter_process(self) -> None:
        """A server may fork in C, unseen by Python, so the process is compared on each use."""
        pid = getpid()
        if self.pid != pid and self.follow():
            self.pid = pid  # set first: a change of the rules from now on sets it back
            if self.shedding is not None and not self.shedding.ensure():
                self.pid = 0

    def shed(self, settings: Settings) -> None:
        """Measure the factors of these settings from now on, or none."""
        factors = settings.shed
        if factors or self.shedding is not None:
            self._shedding.use(settings)
        if not factors:
            self._shedding.close()
        needs_activity = any(factor.kind.needs_activity for factor in factors)
        self.activity = self._shedding.activity if needs_activity else None
        self.shedding = self._shedding if factors else None
        self.pid = 0

    def factors(self) -> list[GaugeState]:
        return [] if self.shedding is None else self.shedding.states()

    def show_factors(self, observers: Iterable[Observer]) -> None:
        """Observers live longer than a guard, and must not keep its thread alive."""
        for observer in observers:
            if hasattr(observer, "watch_factors"):
                observer.watch_factors(partial(_states, ref(self._shedding)))

    def close(self) -> None:
        self._shedding.close()


def _states(shedding: ReferenceType[Shedding]) -> list[GaugeState]:
    measured = shedding()
    return [] if measured is None else measured.states()
