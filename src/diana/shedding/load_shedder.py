"""Is this request shed? All factors of a rules file: the worst one's level counts.

Asked before the rules, so a request that is shed is charged to none. A request that the worst factor exempts is asked about by the next.
"""

from __future__ import annotations

from time import monotonic

from diana.core.policy import Settings
from diana.core.request import Request
from diana.core.shed_settings import Shed
from diana.runtime.fork import fork_safe_lock
from diana.shedding.gauge import Gauge, GaugeState
from diana.shedding.sampling import ProcessActivity, Sampling

STALE_SECONDS = 10.0
"""If nothing was measured for so long, nothing is shed: a factor that never returns must not reject requests for ever."""


class Shedding:
    """`use(settings)`, then `ensure()` in the process that serves; `rejecting` is empty while nothing is shed."""

    def __init__(self) -> None:
        self.activity = ProcessActivity()
        self.rejecting: tuple[Gauge, ...] = ()
        """Those at a level, the worst first."""
        self._gauges: tuple[Gauge, ...] = ()
        self._sampling = Sampling(self)
        self._sampled_at = 0.0
        self._states: list[GaugeState] = []
        self._ranking = fork_safe_lock()

    def use(self, settings: Settings) -> None:
        """These factors from now on; what is measured already goes on."""
        known = {gauge.line.source: gauge for gauge in self._gauges}
        gauges = []
        for line in settings.shed:
            gauge = Gauge(line, settings.mounts)
            before = known.get(line.source)
            if before is not None:
                gauge.take_over(before)
            elif self._sampling.is_running:
                gauge.open(self.activity)
            gauges.append(gauge)
        self._gauges = tuple(gauges)
        self._rank()

    def ensure(self) -> bool:
        """Measure in this process, if it does not yet; whether it does."""
        return self._sampling.ensure()

    def begin(self) -> None:
        """In the process that measures from now on."""
        self.activity.after_fork()
        for gauge in self._gauges:
            gauge.add(None, 0.0)  # what a parent has measured is the parent's
            gauge.open(self.activity)
        self._sampled_at = monotonic()
        self._rank()

    def sample(self, at: float) -> None:
        for gauge in self._gauges:
            gauge.sample(at)
        self._sampled_at = at
        self._rank()

    def shed(self, request: Request) -> Shed | None:
        """None: it is not."""
        for gauge in self.rejecting:
            if not gauge.exempts(request):
                if monotonic() - self._sampled_at > STALE_SECONDS:
                    return None
                return gauge.shed(request)
        return None

    def states(self) -> list[GaugeState]:
        """As of the last time they were all measured; what is told here is done to requests."""
        return list(self._states)

    def close(self) -> None:
        self._sampling.close()
        self._gauges = ()
        self._rank()

    def _rank(self) -> None:
        with self._ranking:  # who swaps the rules and who measures may both do so
            at_a_level = [gauge for gauge in self._gauges if gauge.reject]
            self.rejecting = tuple(sorted(at_a_level, key=lambda gauge: -gauge.reject))
            self._states = [gauge.state() for gauge in self._gauges]
