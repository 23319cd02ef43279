"""Who was just denied need not ask again: a flood of denied requests costs no round trips.

What is remembered is the state that the key was denied in. From then on the algorithm itself answers, here, with the time that has passed
since asking: as long as it says no, it would say no there too, because others can only have added to the count (or given back: that
is seen when the time is over). The moment it says yes, the store is asked. A raised limit asks the same question with other numbers,
so it needs no clearing. Of a log only so much is remembered as it takes to say no again: see PartialLog.
"""

from __future__ import annotations

from typing import NamedTuple

from diana.core.charge import WHOLE, Charges
from diana.core.contracts import State
from diana.core.decision import Decision
from diana.core.log import UnknownEntry
from diana.core.meter import Meter
from diana.stores.lock import fork_safe_lock

MOST = 10_000


class Denial(NamedTuple):
    state: State | None
    asked: int
    """By the clock here (or the one given)."""
    at: int
    """By the store's."""
    beside: dict[bytes, tuple[bool, int, int, int, int]]
    """What the other counters of that request said."""


class DenyCache:
    """Bounded; the oldest goes first."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._by_key: dict[bytes, Denial] = {}
        self._lock = fork_safe_lock()

    def __len__(self) -> int:
        return len(self._by_key)

    def knows_any(self, keys: list[bytes]) -> bool:
        known = self._by_key
        if known:
            for key in keys:
                if key in known:
                    return True
        return False

    def answer(self, charges: Charges, keys: list[bytes], asking: int) -> list[Decision] | None:
        """The denial, if one of these keys would be denied without a doubt."""
        for place, key in enumerate(keys):
            known = self._by_key.get(key)
            if known is None:
                continue
            meter, _, cost = charges[place]
            passed = asking - known.asked
            if 0 <= passed <= _longest(meter):
                at = known.at + passed
                outcome = _outcome(meter, known.state, cost, at)
                if outcome is not None and not outcome[0]:
                    return self._denied(charges, keys, at, known, place, outcome)
            self.forget(key)
        return None

    def _denied(
        self,
        charges: Charges,
        keys: list[bytes],
        at: int,
        denial: Denial,
        denied: int,
        its_outcome: tuple[bool, int, int, int, int],
    ) -> list[Decision]:
        decisions = []
        for place, ((meter, key, cost), wire_key) in enumerate(zip(charges, keys, strict=True)):
            known = self._by_key.get(wire_key)
            outcome = None
            if place == denied:
                outcome = its_outcome  # by now another thread may have forgotten it
            elif known is not None:
                outcome = _outcome(meter, known.state, cost, at)
            if outcome is None or outcome[0]:
                # Not known to deny: as it stood then, or as if never seen.
                seen = denial.beside.get(wire_key)
                outcome = seen or meter.decide(None, meter.params, 0, at)[1]
            decisions.append(Decision(outcome, meter.params.limit, key, cost, at))
        return decisions

    def remember(
        self,
        decisions: list[Decision],
        keys: list[bytes],
        states: dict[bytes, State | None],
        asked: int,
    ) -> None:
        """`states` are those in which counters denied, as far as they are known."""
        beside = {
            key: decision.outcome
            for key, decision in zip(keys, decisions, strict=True)
            if key not in states and decision  # a denial that may not last is not told again
        }
        with self._lock:
            for key, decision in zip(keys, decisions, strict=True):
                if key in states:
                    self._by_key.pop(key, None)
                    if len(self._by_key) >= self._most:
                        del self._by_key[next(iter(self._by_key))]
                    self._by_key[key] = Denial(states[key], asked, decision.at, beside)

    def clear(self) -> None:
        """The store's clock was set back: it shall stamp its counters anew now, not when all this has passed."""
        with self._lock:
            self._by_key.clear()

    def forget(self, key: bytes) -> None:
        if key in self._by_key:
            with self._lock:
                self._by_key.pop(key, None)


def _longest(meter: Meter) -> int:
    """In µs. What may be given back, or is changed by other tiers too, is asked again soon."""
    family = meter.family
    if family is None or family.deny_memory_us is None:
        return WHOLE
    return family.deny_memory_us


def _outcome(
    meter: Meter, state: State | None, cost: int, at: int
) -> tuple[bool, int, int, int, int] | None:
    """None: the store told less of a log than is asked of it now."""
    try:
        return meter.decide(state, meter.params, cost, at)[1]
    except UnknownEntry:
        return None
