"""Counters in this process, in C: one table of compact slots, found by a keyed hash; see `native/table.h`.

What it remembers, forgets and answers is what `python_store.py` does, and that is also where limits go that no kernel decides: the sliding
log, which is as fast in Python, and the algorithms of others. A request that meets both kinds is all or nothing across them.

It needs no lock: a call in C is not interrupted, neither by another thread nor by a signal. A forked child has a copy of its own.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast
from weakref import WeakSet

from diana.core.charge import Charges
from diana.core.contracts import Clock, GiveBack, Take
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.stores.c_kernels import kernels, terms_of
from diana.stores.memory import python_store as in_python
from diana.stores.memory.python_store import MAX_KEYS, checked_size

if TYPE_CHECKING:
    from diana._native import Counters, Terms


class CMemoryStore:
    """`memory://`, or `memory://?max_keys=50000`."""

    shared = False
    all_of_process: ClassVar[WeakSet[CMemoryStore]] = WeakSet()

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._counters: Counters = kernels().Counters(checked_size(max_keys))
        self._both = MixedDecider(self._counters, max_keys)
        self.all_of_process.add(self)
        if type(self).decide is CMemoryStore.decide:
            self.decide = self._counters.decider(self._both.decide)  # type: ignore[method-assign]

    def __len__(self) -> int:
        """How many keys are remembered."""
        return len(self._counters) + self._both.keys_in_python()

    @classmethod
    def from_url(cls, url: str) -> CMemoryStore:
        return cls(cls.check_url(url))

    check_url = staticmethod(in_python.PythonMemoryStore.check_url)

    def bind(self, meter: CounterSpec, clock: Clock | None = None) -> Take:
        terms = kernel_terms(meter)
        if terms is None:
            return self._both.in_python.bind(meter, clock)
        return self._counters.bind(terms, clock)

    def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        decisions = self._counters.decide(charges, now)
        return self._both.decide(charges, now) if decisions is None else decisions

    def peek(self, charges: Charges, now: int | None = None) -> list[Decision]:
        decisions = self._counters.peek(charges, now)
        return self._both.peek(charges, now) if decisions is None else decisions

    def refund(self, charges: Charges, at: int, now: int | None = None) -> None:
        for meter, key, cost in charges:
            terms = kernel_terms(meter)
            if terms is None:
                self._both.in_python.refund([(meter, key, cost)], at, now)
            else:
                self._counters.refund(terms, key, cost, at, now)

    def bind_refund(self, meter: CounterSpec, clock: Clock | None = None) -> GiveBack:
        """For places, which no kernel decides."""
        return self._both.in_python.bind_refund(meter, clock)

    def renew(self, charge: tuple[CounterSpec, str, int], at: int, now: int | None = None) -> int:
        return self._both.in_python.renew(charge, at, now)

    def reset(self, meter: CounterSpec, key: str) -> None:
        terms = kernel_terms(meter)
        if terms is None:
            self._both.in_python.reset(meter, key)
        else:
            self._counters.reset(terms, key)

    def clear(self) -> None:
        """Forget every key."""
        self._counters.clear()
        self._both.clear()

    def close(self) -> None:
        """Nothing is held but memory."""


class MixedDecider:
    """Limits of either kind together. Apart from the store, which holds on to it: no cycle for the garbage collector."""

    def __init__(self, counters: Counters, max_keys: int) -> None:
        self._counters = counters
        self._max_keys = max_keys
        self._in_python: in_python.PythonMemoryStore | None = None

    @property
    def in_python(self) -> in_python.PythonMemoryStore:
        if self._in_python is None:
            self._in_python = in_python.PythonMemoryStore(self._max_keys)
        return self._in_python

    def keys_in_python(self) -> int:
        return 0 if self._in_python is None else len(self._in_python)

    def clear(self) -> None:
        if self._in_python is not None:
            self._in_python.clear()

    def decide(self, charges: Charges, now: int | None) -> list[Decision]:
        """Each side looks at the clock itself, with its lock: by then a thread may have stood still."""
        in_c, in_python = _parted(charges)
        answers: list[Decision] = []

        def charge_in_c(denied: bool) -> bool:
            decided = self._counters.decide([charges[place] for place in in_c], now, denied)
            answers.extend(cast("list[Decision]", decided))
            return all(answers)

        others = [charges[place] for place in in_python]
        found = self.in_python.decide_with(others, now, charge_in_c)
        return _merged(len(charges), (in_c, answers), (in_python, found))

    def peek(self, charges: Charges, now: int | None) -> list[Decision]:
        in_c, in_python = _parted(charges)
        peek_in_c = partial(self._counters.peek, [charges[place] for place in in_c], now)
        decisions = _merged(
            len(charges),
            (in_c, cast("list[Decision]", peek_in_c())),
            (in_python, self.in_python.peek([charges[place] for place in in_python], now)),
        )
        if not all(decisions):
            for place, (meter, key, _) in enumerate(charges):
                if decisions[place]:
                    unpaid = [(meter, key, 0)]
                    found = self._counters.peek(unpaid, now) or self.in_python.peek(unpaid, now)
                    decisions[place] = found[0]._replace(cost=decisions[place].cost)
        return decisions


def kernel_terms(meter: CounterSpec) -> Terms | None:
    """The meter as a kernel takes it, or None if it is counted in Python here."""
    terms: Terms = meter.compiled or terms_of(meter)
    return None if terms.kind in (kernels().LOG, kernels().NUMBERS) else terms


def _parted(charges: Charges) -> tuple[list[int], list[int]]:
    """The places of those that a kernel decides, and of the others."""
    in_c: list[int] = []
    in_python: list[int] = []
    for place, (meter, _, _) in enumerate(charges):
        (in_python if kernel_terms(meter) is None else in_c).append(place)
    return in_c, in_python


def _merged(count: int, *parts: tuple[list[int], list[Decision]]) -> list[Decision]:
    found = {
        place: decision
        for places, decisions in parts
        for place, decision in zip(places, decisions, strict=True)
    }
    return [found[place] for place in range(count)]
