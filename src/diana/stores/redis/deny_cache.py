"""A key that was just denied need not ask again: a flood of denied requests costs no round trips.

What is remembered is the state that the key was denied in. From then on the algorithm itself answers, here, with the time that has passed
since asking: as long as it says no, it would say no there too, because others can only have added to the count (or given back: that
is seen when the time is over). The moment it says yes, the store is asked. A raised limit asks the same question with other numbers,
so it needs no clearing. Of a log only so much is remembered as it takes to say no again: see PartialLog.

A request with several limits is answered here only if all of its counters are known. Of those that had room beside a denial the state is
remembered too; other nodes may charge them, so it is used for a second at most, and it is forgotten when this process charges them.
A charge may be under way with the denial, and the order of the replies is not the order in which the store decided. So every request
and every change of a counter gets a number, and a state is not remembered if its counter has changed since the request began.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from diana.core.charge import WHOLE, Charges
from diana.core.contracts import State
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.duration import SECOND_US
from diana.core.entry_log import UnknownEntry
from diana.runtime.fork import fork_safe_lock

MOST = 10_000
BESIDE_US = SECOND_US
"""For how long the state of a counter that had room is used: other nodes may have charged it."""
CHANGES = 4_096
"""Of so many groups of keys, by hash, the last change is noted."""


class Asking(NamedTuple):
    """When a request began."""

    us: int
    """By the clock here (or the one given)."""
    number: int
    """Among the requests and the changes of this process."""


class Seen(NamedTuple):
    """What the store told of a counter with a denial."""

    state: State | None
    asked: int
    """By the clock here (or the one given)."""
    at: int
    """By the store's."""


class DenyCache:
    """Bounded; the oldest goes first."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._denied: dict[bytes, Seen] = {}
        self._beside: dict[bytes, Seen] = {}
        """Counters that had room when another denied."""
        self._numbers = count(1)
        self._changes = [0] * CHANGES
        self._lock = fork_safe_lock()

    def __len__(self) -> int:
        return len(self._denied)

    def begin(self, us: int) -> Asking:
        return Asking(us, next(self._numbers))

    def knows_any(self, keys: list[bytes]) -> bool:
        """Whether one of these was denied."""
        known = self._denied
        if known:
            for key in keys:
                if key in known:
                    return True
        return False

    def knows_all(self, keys: list[bytes]) -> bool:
        """Whether one of these was denied, and the others are known too."""
        if not self.knows_any(keys):
            return False
        return all(key in self._denied or key in self._beside for key in keys)

    def answer(self, charges: Charges, keys: list[bytes], asking: int) -> list[Decision] | None:
        """What the store would say, if one of these keys would be denied without a doubt and all are known."""
        if not self.knows_any(keys):
            return None
        seen = [self._denied.get(key) or self._beside.get(key) for key in keys]
        if any(one is not None and asking < one.asked for one in seen):
            for known in keys:  # the clock was set back, and the store stamps its counters anew
                self._drop(known)
            return None
        at = max(one.at + asking - one.asked for one in seen if one is not None)
        decisions: list[Decision] = []
        for (meter, key, cost), wire_key in zip(charges, keys, strict=True):
            outcome = self._denial(wire_key, meter, cost, asking, at)
            outcome = outcome or self._room(wire_key, meter, cost, asking, at)
            if outcome is None:
                return None
            decisions.append(Decision(outcome, meter.params.limit, key, cost, at))
        return None if all(decisions) else decisions

    def denials(self, charges: Charges, keys: list[bytes], asking: int) -> dict[int, Decision]:
        """Those of a request that would be denied without a doubt, by place: all that there is to say if the store is lost."""
        denials: dict[int, Decision] = {}
        for place, ((meter, key, cost), wire_key) in enumerate(zip(charges, keys, strict=True)):
            seen = self._denied.get(wire_key)
            if seen is not None:
                at = seen.at + asking - seen.asked
                outcome = self._denial(wire_key, meter, cost, asking, at)
                if outcome is not None:
                    denials[place] = Decision(outcome, meter.params.limit, key, cost, at)
        return denials

    def remember(
        self,
        decisions: list[Decision],
        keys: list[bytes],
        states: dict[bytes, State | None],
        asking: Asking,
    ) -> None:
        """`states` are those of the counters of a denied request, as far as the store has told them."""
        for key, decision in zip(keys, decisions, strict=True):
            if key not in states:
                continue
            self._put(key, Seen(states[key], asking.us, decision.at), denied=not decision)
            if decision.remaining and self._changes[hash(key) % CHANGES] > asking.number:
                self._drop(key)  # after it was put, or a change in between would be missed

    def clear(self) -> None:
        """The store's clock was set back: it shall stamp its counters anew now, not when all this has passed."""
        with self._lock:
            self._denied.clear()
            self._beside.clear()

    def forget(self, *keys: bytes) -> None:
        """These counters have changed."""
        number = next(self._numbers)
        for key in keys:
            self._changes[hash(key) % CHANGES] = number
            self._drop(key)

    def forget_room(self, keys: Iterable[bytes]) -> None:
        """These counters may have been charged: those that had denied would deny all the more."""
        self.forget(*[key for key in keys if key not in self._denied])

    def _denial(
        self, key: bytes, meter: CounterSpec, cost: int, asking: int, at: int
    ) -> tuple[bool, int, int, int, int] | None:
        """None: it is not certain that it would be denied."""
        seen = self._denied.get(key)
        if seen is None:
            return None
        if 0 <= asking - seen.asked <= _longest(meter):
            outcome = _outcome(meter, seen.state, cost, at)
            if outcome is not None and not outcome[0]:
                return outcome
        self._drop(key)
        return None

    def _room(
        self, key: bytes, meter: CounterSpec, cost: int, asking: int, at: int
    ) -> tuple[bool, int, int, int, int] | None:
        """What it has beside a denial. None: it is not known, or may have changed."""
        seen = self._beside.get(key)
        if seen is None:
            return None
        if 0 <= asking - seen.asked <= BESIDE_US:
            outcome = _outcome(meter, seen.state, cost, at)
            if outcome is not None and outcome[0]:
                return _outcome(meter, seen.state, 0, at)
        self._drop(key)
        return None

    def _put(self, key: bytes, seen: Seen, denied: bool) -> None:
        with self._lock:
            known = self._denied.get(key) or self._beside.get(key)
            if known is not None and known.at > seen.at:
                return  # replies may overtake each other
            self._denied.pop(key, None)
            self._beside.pop(key, None)
            kept = self._denied if denied else self._beside
            if len(kept) >= self._most:
                del kept[next(iter(kept))]
            kept[key] = seen

    def _drop(self, key: bytes) -> None:
        if key in self._denied or key in self._beside:
            with self._lock:
                self._denied.pop(key, None)
                self._beside.pop(key, None)


def _longest(meter: CounterSpec) -> int:
    """In µs. What may be given back, or is changed by other tiers too, is asked again soon."""
    family = meter.family
    if family is None or family.deny_memory_us is None:
        return WHOLE
    return family.deny_memory_us


def _outcome(
    meter: CounterSpec, state: State | None, cost: int, at: int
) -> tuple[bool, int, int, int, int] | None:
    """None: the store told less of a log than is asked of it now."""
    try:
        return meter.decide(state, meter.params, cost, at)[1]
    except UnknownEntry:
        return None
