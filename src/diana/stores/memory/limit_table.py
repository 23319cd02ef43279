"""The counters of one limit, and for how long each of them matters.

Several counter specs may count in one table: the tiers and overrides of a rule, which know of each other (see CounterGroup), and limits
that do not, such as two limiters of one name, or the rules before and after an edit. A counter is forgotten when it is as good as never
seen to each of them. A spec that is no longer used matters until its last `reset_after` is over.
"""

from __future__ import annotations

from diana.core.contracts import State
from diana.core.counter import CounterSpec
from diana.core.duration import SECOND_US

Kept = str | bytes
"""A key as it is kept; a long one as a digest, in bytes, which no key can be mistaken for."""
UNLISTED = -1
"""The number of a table that holds no key yet."""
MOST_FORMER = 8
"""Meters that were asked before; of more, those that matter for longest."""


class LimitTable:
    """A state of None is a key that was reset and is still in an expiry queue."""

    def __init__(self, meter: CounterSpec) -> None:
        self.number = UNLISTED
        self.meter = meter
        """The one that was asked last."""
        self._former: dict[CounterSpec, int] = {}
        """Those that were asked before, and until when what they said may matter."""
        self.bound = False
        """Somebody holds on to it, so it stays, however empty."""
        self.states: dict[Kept, State | None] = {}
        self.most = 0
        self.place = 0
        """In the crowd of tables."""
        self._copied: dict[Kept, State | None] = {}
        """All states, while the dictionary is replaced."""

    def turn_to(self, meter: CounterSpec, now: int) -> None:
        """Another meter is asked than before."""
        before, after = _slowest(self.meter), _slowest(meter)
        self.meter = meter
        if before is after:
            return
        former = self._former
        former.pop(after, None)
        former[before] = now + _longest_us(before) + SECOND_US
        if len(former) > MOST_FORMER:
            for over in [one for one, until in former.items() if until <= now]:
                del former[over]
        if len(former) > MOST_FORMER:
            del former[min(former, key=former.__getitem__)]

    def rest(self, key: Kept, cost: int, now: int) -> tuple[bool, int, int, int, int]:
        """What a charge would find, without making it: of a rule's tiers and overrides, the one that remembers longest."""
        meter = _slowest(self.meter)
        return meter.decide(self.states[key], meter.params, cost, now)[1]

    def reset_us(self, key: Kept, now: int) -> int:
        """For how long the key matters to any meter."""
        reset_us = self.rest(key, 0, now)[3]
        if self._former:
            state = self.states[key]
            for meter, until_us in self._former.items():
                if now < until_us:
                    reset_us = max(reset_us, meter.decide(state, meter.params, 0, now)[1][3])
        return reset_us

    def forget(self, key: Kept) -> None:
        states = self.states
        self.most = max(self.most, len(states))
        del states[key]
        if len(states) * 8 < self.most > 1_024:
            # A dictionary never shrinks by deletion. In place: bound limits hold on to this very one.
            self._copied = dict(states)
            states.clear()
            self.mend()

    def clear(self) -> None:
        self.states.clear()
        self._copied, self.most = {}, 0

    def mend(self) -> None:
        """Finish what `forget` had begun."""
        if self._copied:
            self.states.update(self._copied)
            self.most = len(self.states)
            self._copied = {}


def _slowest(meter: CounterSpec) -> CounterSpec:
    """Of a rule's tiers and overrides."""
    family = meter.family
    return meter if family is None else family.longest or meter


def _longest_us(slowest: CounterSpec) -> int:
    """For how long the fullest counter matters."""
    family = slowest.family
    params = [slowest.params]
    if family is not None:
        algorithm = slowest.algorithm
        params += [algorithm.params(limit, **options) for limit, options in family.extremes]
    longest_us = 0
    for some in params:
        state, _ = slowest.decide(None, some, some.limit, 0)
        longest_us = max(longest_us, slowest.decide(state, slowest.params, 0, 0)[1][3])
    return longest_us
