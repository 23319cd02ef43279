"""All leases of this node, behind one lock, and which counters are hot enough for one.

A counter is hot here when ten requests of one second had to ask the store for it: then it gets a lease, if its limit is fast enough for
leases to save anything. One that nothing was asked of for a while gives back what it holds, and is as any other again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from time import monotonic_ns
from typing import NamedTuple, TypeVar

from diana.core.charge import ONE, Charges, checked_cost
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.duration import SECOND_US
from diana.core.node_share import Shares
from diana.core.settings import LeaseTerms
from diana.runtime.fork import fork_safe_lock
from diana.stores.redis.leases.lease import EMPTY_US, FAR, Lease, is_fast_enough
from diana.stores.redis.leases.lease_request import LeaseGrant, LeaseRequest
from diana.stores.redis.leases.recent_denials import MOST_WATCHED, RecentDenials

HOT = 10
"""Requests in one second that had to ask."""
MOST_LEASES = 10_000

T = TypeVar("T")

_new = tuple.__new__


class LeaseClaim(NamedTuple):
    """An ask to be sent for a request; without a lease, a charge alone."""

    lease: Lease | None
    ask: LeaseRequest


class LeaseTable:
    def __init__(
        self,
        node: str,
        terms: LeaseTerms,
        shares: Shares,
        wake: Callable[[], None] | None,
        learn: Callable[[bytes, int], None],
        clock_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        """`wake` wakes the thread that renews leases; without one there are none. `learn` is told what is used of a counter, should the
        store be lost. The clock is never set."""
        self._learn = learn
        self._clock_ns = clock_ns
        self.node = node
        self._terms = terms
        self._shares = shares
        self._wake = wake
        self._lock = fork_safe_lock()
        # See MemoryStore: half the cost of a `with`.
        self._taken, self._release = iter(self._lock.acquire, None), self._lock.release
        self._by_id: dict[str, dict[str, Lease]] = {}
        self._by_meter: dict[CounterSpec, dict[str, Lease]] = {}
        self._leases = 0
        self._low: dict[Lease, None] = {}
        """Those that ran low since the refiller last looked."""
        self._agenda: list[tuple[int, int, Lease]] = []
        self._scheduled: dict[Lease, int] = {}
        self._order = 0
        self._second = 0
        self._asked: dict[bytes, int] = {}
        """By counters without a lease: how often in this second."""
        self._denied = RecentDenials()
        self._is_woken = False
        self._sleeps_until_us = FAR
        """The refiller is not needed before; it has not begun yet, or says so itself."""
        self.decided = 0
        """Requests that a lease has decided."""

    def clock(self) -> int:
        """In µs."""
        return self._clock_ns() // 1_000

    def at_hand(self, charges: Charges) -> list[Decision] | None:
        """All decided from leases, without a trip. None: some must be asked for, and nothing was taken."""
        if len(charges) == 1:
            decision = self.take(*charges[0])
            return None if decision is None else [decision]
        with self._lock:
            return self._several_at_hand(charges, self.clock())

    def take(self, meter: CounterSpec, key: str, cost: int) -> Decision | None:
        """The same for one."""
        if cost is not ONE:
            checked_cost(cost)
        for _ in self._taken:
            try:
                now = self._clock_ns() // 1_000
                leases = self._by_meter.get(meter)
                lease = None if leases is None else leases.get(key)
                if lease is None:
                    return None
                if lease.meter is not meter:
                    lease.meter = meter  # see _lease
                # Lease.take and the like, written out: the calls would cost as much as all the rest.
                lease.wanted += cost
                left = lease.permits - cost
                if left >= 0 and now < lease.ends_us:
                    lease.permits = left
                    lease.used += cost
                    if left <= lease.low and lease.is_due(now):
                        self._notice(lease)
                    outcome = (True, lease.remaining + left, 0, lease.reset_us, 0)
                else:
                    denied = lease.denial(cost, now)
                    if denied is None:
                        lease.wanted -= cost  # it is asked once more in a moment
                        return None
                    if lease.is_due(now):
                        self._notice(lease)
                    outcome = denied
                self.decided += 1
                at = lease.offset_us + now
            finally:
                self._release()
            break
        decision: Decision = _new(Decision, (outcome, meter.params.limit, key, cost, at, False))
        return decision

    def _several_at_hand(self, charges: Charges, now: int) -> list[Decision] | None:
        leases = [self._lease(meter, key) for meter, key, _ in charges]
        taken: list[tuple[Lease, int]] = []
        decisions: list[Decision] = []
        known = True
        for lease, (meter, key, cost) in zip(leases, charges, strict=True):
            checked_cost(cost)
            if lease is None:
                known = False
                break
            outcome = self._try(lease, cost, now)
            if outcome is None:
                known = False
                break
            if outcome[0]:
                taken.append((lease, cost))
            at = lease.server_us(now)
            decisions.append(Decision(outcome, meter.params.limit, key, cost, at))
        for lease in leases:
            if lease is not None and lease.is_due(now):
                self._notice(lease)
        if known and all(decisions):
            self.decided += 1
            return decisions
        for lease, cost in taken:
            self._untake(lease, cost, now, asks_again=not known)
        if not known:
            return None
        self.decided += 1
        return [
            _without_charge(decision, lease.holds(now) + lease.remaining)
            if decision and lease
            else decision
            for decision, lease in zip(decisions, leases, strict=True)
        ]

    def _try(self, lease: Lease, cost: int, now: int) -> tuple[bool, int, int, int, int] | None:
        return lease.outcome() if lease.take(cost, now) else lease.denial(cost, now)

    def _untake(self, lease: Lease, cost: int, now: int, asks_again: bool) -> None:
        lease.put_back(cost, lease.server_us(now), now)
        if asks_again:
            lease.wanted -= cost

    def claim(
        self, meter: CounterSpec, key: str, wire_key: bytes, cost: int
    ) -> Decision | LeaseClaim:
        """A decision at hand, or what to ask for it."""
        with self._lock:
            now = self.clock()
            lease = self._lease(meter, key)
            if lease is None:
                denied = self._denied.known(meter, key, wire_key, cost, now)
                if denied is not None:
                    return denied
                lease = self._heat(meter, key, wire_key, now)
                if lease is None:
                    return LeaseClaim(None, LeaseRequest(cost=cost, ttl_us=self._terms.ttl_us))
            return self._changed(lease, now, lambda: self._claim(lease, cost, now))

    def _claim(self, lease: Lease, cost: int, now: int) -> Decision | LeaseClaim:
        outcome = LeaseTable._try(self, lease, cost, now)
        if outcome is not None:
            if lease.is_due(now):
                self._notice(lease)
            at = lease.server_us(now)
            return Decision(outcome, lease.meter.params.limit, lease.key, cost, at)
        if lease.is_asking(now):
            return LeaseClaim(None, LeaseRequest(cost=cost, ttl_us=self._terms.ttl_us))
        return LeaseClaim(lease, lease.begin(now, self._nodes, cost))

    def settle(
        self, lease: Lease, ask: LeaseRequest, grant: LeaseGrant | None, server_us: int
    ) -> None:
        """The reply to an ask."""
        with self._lock:
            now = self.clock()
            self._changed(lease, now, lambda: lease.finish(ask, grant, server_us, now))
            if grant is not None:
                self._learn(lease.wire_key, lease.meter.params.limit - grant.remaining)
            self._schedule(lease, max(now + 1, lease.due_us()))

    def lose(self, lease: Lease, ask: LeaseRequest) -> None:
        """An ask of which nothing is known, or that was never sent."""
        with self._lock:
            now = self.clock()
            self._changed(lease, now, lambda: lease.lose(ask))
            self._schedule(lease, now + EMPTY_US)

    def remember_denial(
        self, meter: CounterSpec, wire_key: bytes, cost: int, grant: LeaseGrant, sent_us: int
    ) -> None:
        """Of a counter without a lease: for at most 100 ms."""
        with self._lock:
            self._denied.remember(meter, wire_key, cost, grant, sent_us)

    def put_back(self, meter: CounterSpec, key: str, cost: int, at: int) -> bool:
        """Into the live lease, if it has one that has not reported it yet."""
        with self._lock:
            lease, now = self._lease(meter, key), self.clock()
            if lease is None:
                return False
            return self._changed(lease, now, lambda: lease.put_back(cost, at, now))

    def outcome_at_hand(
        self, meter: CounterSpec, key: str, cost: int
    ) -> tuple[tuple[bool, int, int, int, int], int] | None:
        """What a charge would be told, and the store's time; None: the pool must be asked."""
        with self._lock:
            now = self.clock()
            lease = self._lease(meter, key)
            if lease is None:
                return None
            lease.load(now)
            held = lease.holds(now)
            at = lease.server_us(now)
            if held >= cost:
                _, _, _, reset_us, _ = lease.outcome()
                return (True, lease.remaining + held - cost, 0, reset_us, 0), at
            denied = lease.denial(cost, now)
            return None if denied is None else (denied, at)

    def forget_empty(self, meter: CounterSpec, key: str, wire_key: bytes) -> None:
        with self._lock:
            self._denied.forget(wire_key)
            lease = self._lease(meter, key)
            if lease is not None:
                self._changed(lease, self.clock(), lease.forget_empty)

    def due(self) -> tuple[list[tuple[Lease, LeaseRequest]], int]:
        """What to ask now, ahead of need; and for how many µs there is nothing else to do."""
        with self._lock:
            now = self.clock()
            self._is_woken = False
            looked_at, self._low = list(self._low), {}
            while self._agenda and self._agenda[0][0] <= now:
                when, _, lease = heappop(self._agenda)
                if self._scheduled.get(lease) == when:
                    del self._scheduled[lease]
                    looked_at.append(lease)
            asks: list[tuple[Lease, LeaseRequest]] = []
            for lease in looked_at:
                ask = self._changed(lease, now, lambda: self._ask_if_due(lease, now))  # noqa: B023
                if ask is not None:
                    asks.append((lease, ask))
            pause = self._agenda[0][0] - now if self._agenda else SECOND_US
            pause = max(1_000, min(SECOND_US, pause))
            self._sleeps_until_us = 0 if asks else now + pause
            return asks, pause

    def _ask_if_due(self, lease: Lease, now: int) -> LeaseRequest | None:
        if lease.is_due(now):
            if not lease.is_idle(now):
                return lease.begin(now, self._nodes)
            self._forget(lease)
        elif lease not in self._scheduled and lease.due_us() < FAR:
            self._schedule(lease, max(now + 1_000, lease.due_us()))
        return None

    def leave(self) -> list[tuple[Lease, LeaseRequest]]:
        """Everything goes back: this node ends."""
        with self._lock:
            now = self.clock()
            asks = [
                (lease, self._changed(lease, now, lambda: _leave(lease, now)))  # noqa: B023
                for lease in self._all()
            ]
            return [(lease, ask) for lease, ask in asks if ask is not None]

    def told(self) -> dict[str, int]:
        """How many counters are leased, what is held of them, and how much was taken from leases."""
        with self._lock:
            now = self.clock()
            for lease in self._all():
                lease.load(now)
            return {
                "keys": self._leases,
                "held": sum(lease.holds(now) for lease in self._all()),
                "used": sum(lease.taken for lease in self._all()),
            }

    @property
    def _nodes(self) -> int:
        share = self._shares.share
        return max(1, share.total // share.weight)

    def _all(self) -> Iterator[Lease]:
        for leases in self._by_id.values():
            yield from leases.values()

    def _lease(self, meter: CounterSpec, key: str) -> Lease | None:
        leases = self._by_meter.get(meter)
        if leases is None:
            leases = self._by_id.get(meter.id)
            if leases is None:
                return None
            if len(self._by_meter) >= MOST_LEASES:
                self._by_meter.clear()
            self._by_meter[meter] = leases
        lease = leases.get(key)
        if lease is not None and lease.meter is not meter:
            # The rule was edited, or overrides this key: what is held stays. Of other keys this says nothing.
            lease.meter = meter
        return lease

    def _heat(self, meter: CounterSpec, key: str, wire_key: bytes, now: int) -> Lease | None:
        """One more request that has to ask; a lease, if it is the tenth of this second."""
        if self._wake is None or self._leases >= MOST_LEASES or not is_fast_enough(meter):
            return None
        second = now // SECOND_US
        if second != self._second or len(self._asked) >= MOST_WATCHED:
            self._second, self._asked = second, {}
        times = self._asked[wire_key] = self._asked.get(wire_key, 0) + 1
        if times < HOT:
            return None
        del self._asked[wire_key]
        lease = self._new_lease(meter, key, wire_key, now)
        leases = self._by_id.setdefault(meter.id, {})
        leases[key] = self._by_meter.setdefault(meter, leases)[key] = lease
        self._leases += 1
        return lease

    def _new_lease(self, meter: CounterSpec, key: str, wire_key: bytes, now: int) -> Lease:
        lease = Lease(self.node, meter, key, wire_key, self._terms, now)
        lease.wanted = HOT
        return lease

    @staticmethod
    def _changed(lease: Lease, now: int, act: Callable[[], T]) -> T:
        """Done to it as it is; once more, if another process was faster."""
        while True:
            lease.load(now)
            result = act()
            if lease.save():
                return result

    def _forget(self, lease: Lease) -> None:
        leases = self._by_id.get(lease.meter.id)
        if leases is not None and leases.get(lease.key) is lease:
            del leases[lease.key]
            self._leases -= 1
            self._scheduled.pop(lease, None)

    def _notice(self, lease: Lease) -> None:
        self._low[lease] = None
        self._wake_refiller()

    def _wake_refiller(self) -> None:
        if not self._is_woken and self._wake is not None:
            self._is_woken = True
            self._wake()

    def _schedule(self, lease: Lease, when_us: int) -> None:
        self._order += 1
        self._scheduled[lease] = when_us
        heappush(self._agenda, (when_us, self._order, lease))
        if when_us < self._sleeps_until_us:
            self._wake_refiller()


def _leave(lease: Lease, now: int) -> LeaseRequest | None:
    if lease.is_asking(now) or lease.is_idle(now):
        return None
    return lease.begin(now, 1, leave=True)


def _without_charge(decision: Decision, remaining: int) -> Decision:
    """What passes beside a denial is not charged."""
    _, _, _, reset_us, _ = decision.outcome
    return decision._replace(outcome=(True, remaining, 0, reset_us, 0))
