"""Leases that the processes of a machine hold together: they stand in their zone, and to the fleet all of them are one node.

    worker 1   takes a permit ──╮
    worker 2   takes a permit ──┼─▶ zone: permits, used, … ◀── whoever finds them low asks the pool, for all;
    worker 3   takes a permit ──╯                              that it asks, and since when, stands there too

Nobody is chosen: who is the first to write that it asks is the one. Should it be killed before the reply, another asks after half of the
ttl, with the next number, and a reply that comes after all is not heard. A process holds nothing of its own, so what one that is killed
had taken is in the next report, and nothing waits for its end.

What is done to a lease is done to the numbers as they stand, and written if they still stand so; else it is done again. No lock is held
meanwhile, and a worker that is stopped keeps nobody waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from secrets import randbits
from typing import Any, NamedTuple, cast

from diana.core.charge import ONE, checked_cost
from diana.core.contracts import Numbers, State, Zone
from diana.core.counter import CounterSpec
from diana.core.decision import NEVER, Decision
from diana.core.duration import SECOND_US
from diana.core.limit import Limit
from diana.core.node_share import Shares
from diana.core.settings import LeaseTerms
from diana.stores.redis.leases.lease import Lease
from diana.stores.redis.leases.lease_table import LeaseTable

LONGEST_PATIENCE_US = SECOND_US
"""An ask that took longer than that is repeated by another process."""
HOT_NUMBERS, COLD_NUMBERS = 11, 15
"""What a decision needs, and what only an ask does: two states, so that a decision reads and writes little."""
USEFUL_UNTIL = 3
"""Which number of either is the moment until which it is of use."""

Outcome = tuple[bool, int, int, int, int]


class ZoneLease(Lease):
    __slots__ = ("_before", "_places", "_zone", "hot")

    def __init__(
        self,
        zone: Zone,
        pool: str,
        meter: CounterSpec,
        key: str,
        wire_key: bytes,
        terms: LeaseTerms,
        now: int,
    ) -> None:
        self._zone = zone
        place = f"{pool}|{wire_key.decode('latin-1')}"
        self.hot = f"hot {place}"
        self._places = (self.hot, f"cold {place}")
        self._before: list[Numbers | None] = [None, None]
        super().__init__("", meter, key, wire_key, terms, now)
        self._begin_anew(now)

    def _begin_anew(self, now: int) -> None:
        super().__init__(_new_name(), self.meter, self.key, self.wire_key, self._terms, now)
        self._patience_us = min(LONGEST_PATIENCE_US, self._terms.ttl_us // 2)
        self.wanted = 0

    def load(self, now: int) -> None:
        hot, cold = self._before = self._zone.read(LEASES, self._places)
        if hot is None or cold is None or (len(hot), len(cold)) != (HOT_NUMBERS, COLD_NUMBERS):
            # The first, or the zone has forgotten it, or another version wrote it: what is held under its old name comes to its end.
            self._begin_anew(now)
            return
        (
            self.permits, self.used, self.wanted, self.ends_us, self.low, self.remaining, self.reset_us,
            self.offset_us, self.closed_until_us, self._retry_at_us, _,
        ) = hot  # fmt: skip
        (
            name, self._seq, self._base, self._renew_us, self._ask_again_us, in_flight, self._sent_us, self._asked_used,
            self._asked_keep, self._reported, self._counted_us, thousandths, self._latency_us, self._target, self._server_us,
        ) = cold  # fmt: skip
        self._node = f"{name:x}"
        self.in_flight = in_flight == 1
        self._per_second = thousandths / 1_000

    def save(self) -> bool:
        quiet_until_us = self._sent_us + self._patience_us if self.in_flight else self._ask_again_us
        hot = (
            self.permits, self.used, self.wanted, self.ends_us, self.low, self.remaining, self.reset_us,
            self.offset_us, self.closed_until_us, self._retry_at_us, quiet_until_us,
        )  # fmt: skip
        cold = (
            int(self._node, 16), self._seq, self._base, self._renew_us, self._ask_again_us, int(self.in_flight), self._sent_us,
            self._asked_used, self._asked_keep, self._reported, self._counted_us, round(self._per_second * 1_000),
            self._latency_us, self._target, self._server_us,
        )  # fmt: skip
        was_hot, was_cold = self._before
        if hot == was_hot and cold == was_cold:
            return True
        hot_place, cold_place = self._places
        swaps = [(hot_place, was_hot, hot), (cold_place, was_cold, cold)]
        return self._zone.swap(LEASES, swaps, self._terms.ttl_us)


class Taken(NamedTuple):
    outcome: Outcome
    at: int
    """When, by the store's clock."""
    is_due: bool
    """It is time to ask."""


def _taken(
    hot: Numbers | None, cost: int, most: int, now: int
) -> tuple[Numbers | None, Taken | None]:
    """`Lease.take` and the like, of the numbers a decision needs; None, if the pool must be asked."""
    if hot is None or len(hot) != HOT_NUMBERS:
        return hot, None
    (
        permits, used, wanted, ends_us, low, remaining, reset_us, offset_us, closed_us, retry_us, quiet_us,
    ) = hot  # fmt: skip
    left = permits - cost
    if left >= 0 and now < ends_us:
        outcome = (True, remaining + left, 0, reset_us, 0)
        is_due = left <= low and now >= quiet_us
        after = (left, used + cost, wanted + cost, *hot[3:])
        return after, Taken(outcome, offset_us + now, is_due)
    if now >= closed_us:
        return hot, None
    again_us = NEVER if cost > most else max(1, retry_us - now)
    outcome = (False, permits if now < ends_us else 0, again_us, reset_us, 0)
    after = (permits, used, wanted + cost, *hot[3:])
    return after, Taken(outcome, offset_us + now, now >= quiet_us)


class ZoneLeaseTable(LeaseTable):
    """What this process knows of them: which counters it has found hot, and when to look at each."""

    def __init__(
        self,
        zone: Zone,
        pool: str,
        terms: LeaseTerms,
        shares: Shares,
        wake: Callable[[], None] | None,
        learn: Callable[[bytes, int], None],
    ) -> None:
        """`pool`: what the store is called, since a zone may be used by rules of several."""
        super().__init__(zone.node, terms, shares, wake, learn, lambda: 1_000 * zone.now_us())
        self._zone = zone
        self._pool = pool

    def take(self, meter: CounterSpec, key: str, cost: int) -> Decision | None:
        if cost is not ONE:
            checked_cost(cost)
        with self._lock:
            lease = self._lease(meter, key)
            if lease is None:
                return None
            taken = self._taken_from(lease, cost)
            if taken is None:
                return None
            self.decided += 1
        return Decision(taken.outcome, meter.params.limit, key, cost, taken.at)

    def _taken_from(self, lease: Lease, cost: int) -> Taken | None:
        """The clock is looked at after the numbers: this process may have stood still in between, and the lease be over."""
        most, now_us = lease.meter.params.limit, self._zone.now_us
        place = cast("ZoneLease", lease).hot
        taken = self._zone.change(LEASES, place, lambda hot: _taken(hot, cost, most, now_us()))
        if taken is not None and taken.is_due:
            self._notice(lease)
        return taken

    def _try(self, lease: Lease, cost: int, now: int) -> Outcome | None:
        taken = self._taken_from(lease, cost)
        if taken is None:
            return None
        lease.offset_us = taken.at - now
        return taken.outcome

    def _untake(self, lease: Lease, cost: int, now: int, asks_again: bool) -> None:
        untake = super()._untake
        self._changed(lease, now, lambda: untake(lease, cost, now, asks_again))

    def _new_lease(self, meter: CounterSpec, key: str, wire_key: bytes, now: int) -> Lease:
        lease = ZoneLease(self._zone, self._pool, meter, key, wire_key, self._terms, now)
        # It may be there already, and then nothing that this process does need ever have it looked at.
        self._schedule(lease, now + self._terms.ttl_us // 2)
        return lease


class LeaseNumbers:
    """As what a zone keeps them: a lease is as good as never seen when it is over."""

    code = "lease"
    spelling = "lease"
    options: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()

    @staticmethod
    def decide(state: Any, _: Any, __: int, now: int) -> tuple[State | None, Outcome]:
        numbers: Numbers = (0,) * COLD_NUMBERS if state is None else state
        return numbers, (True, 1, 0, max(0, numbers[USEFUL_UNTIL] - now), 0)


class OneOfAll(NamedTuple):
    limit: int = 1


LEASES = CounterSpec("|leases", Limit(1, SECOND_US), cast("Any", LeaseNumbers()), OneOfAll(), {})
"""Under which a zone keeps them all; no rule has such a name."""


def _new_name() -> str:
    """Of a lease, among those who hold permits of a counter."""
    return f"{randbits(52):x}"
