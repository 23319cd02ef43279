"""What this node holds of one counter. No clock, no lock, no I/O: time comes in, in whole µs of a clock that is never set.

    permits
      target ┤╲      ╭╮      ╭╮         asks when half of it is used, before it is needed;
             │ ╲    ╱ ╲    ╱            how much it asks for follows how much is asked of it
         low ┤  ╲──╯   ╲──╯ ╲           and how long a reply takes
           0 ┼────────────────╲────▶ now
                  ask    ask    end: what was not reported by then counts as used

A lease ends by this node's own clock, counted from the moment of asking: the store began to count later, so it never ends there first. A
pool that had nothing left is remembered for at most 100 ms; meanwhile requests that find no permit here are denied without a trip.
"""

from __future__ import annotations

from diana.core.counter import CounterSpec
from diana.core.decision import NEVER
from diana.core.duration import SECOND_US
from diana.core.settings import LeaseTerms
from diana.stores.redis.leases.lease_request import LeaseGrant, LeaseRequest

REFILL_US = 100_000
"""At most what comes back in this time is granted at once, shared among all who ask."""
EMPTY_US = 100_000
"""For at most so long an empty pool is remembered."""
HORIZON_US = 20_000
"""A batch lasts for about so long, or for two round trips, if those take longer."""
BATCH = 50
"""A node of little demand asks for so many, if it needs them within a quarter of the ttl: one trip in fifty decisions."""
SHARE = 25
"""When the pool runs short, a node waits until about so many are there for each who asks."""
LEAST_RATE = 20
"""Requests per second: of a slower limit, 100 ms bring back less than two permits, and a lease saves no trip."""
FAR = 1 << 62


class Lease:
    __slots__ = (
        "_ask_again_us",
        "_asked_keep",
        "_asked_used",
        "_base",
        "_counted_us",
        "_latency_us",
        "_node",
        "_patience_us",
        "_per_second",
        "_renew_us",
        "_reported",
        "_retry_at_us",
        "_sent_us",
        "_seq",
        "_server_us",
        "_target",
        "_terms",
        "closed_until_us",
        "ends_us",
        "in_flight",
        "key",
        "low",
        "meter",
        "offset_us",
        "permits",
        "remaining",
        "reset_us",
        "used",
        "wanted",
        "wire_key",
    )

    def __init__(
        self, node: str, meter: CounterSpec, key: str, wire_key: bytes, terms: LeaseTerms, now: int
    ) -> None:
        self._node = node
        self.meter = meter
        self.key = key
        self.wire_key = wire_key
        self._terms = terms
        self.permits = 0
        self.ends_us = now
        self._renew_us = now
        self.used = 0
        """Since the last grant that arrived."""
        self._reported = 0
        """Before that."""
        self._seq = 0
        self._base = 0
        self.in_flight = False
        """An ask is under way."""
        self._patience_us = FAR
        """For so long: who asks always says how it ended. See `zone_lease`, where one may be killed."""
        self._sent_us = now
        self._asked_used = 0
        self._asked_keep = 0
        self.wanted = 1
        """What was asked of it since it last asked, granted or not."""
        self._counted_us = now - HORIZON_US
        self._per_second = 0.0
        self._latency_us = 0
        self._target = 1
        self.low = 0
        """At so few permits it is time to ask."""
        self.closed_until_us = now
        """The pool had nothing left: until then no request asks it, nor waits for an ask that is under way."""
        self._ask_again_us = now
        """Nor before then this node, ahead of need."""
        self._retry_at_us = now
        self.remaining = 0
        """What was left in the pool."""
        self.reset_us = 0
        self._server_us = 0
        """When the last grant was made, by the store's clock."""
        self.offset_us = 0
        """From the clock here to the store's: by when it was asked for, so never ahead of it."""

    def load(self, now: int) -> None:
        """As it is now: see `zone_lease`, where other processes change it too."""

    def save(self) -> bool:
        """What was done since. False: another process was faster, and it has to be done again."""
        return True

    def is_asking(self, now: int) -> bool:
        """An ask is under way, and not given up."""
        return self.in_flight and now < self._sent_us + self._patience_us

    def take(self, cost: int, now: int) -> bool:
        """Whether there was so much."""
        self.wanted += cost
        if self.permits < cost or now >= self.ends_us:
            return False
        self.permits -= cost
        self.used += cost
        return True

    def put_back(self, cost: int, at: int, now: int) -> bool:
        """What was taken at `at`, by the store's clock; unless that is reported already, or was of a lease that is over: then it is
        the pool's to take back."""
        if now >= self.ends_us or at < self._server_us or self.used - self._asked_used < cost:
            return False
        self.permits += cost
        self.used -= cost
        return True

    def holds(self, now: int) -> int:
        return self.permits if now < self.ends_us else 0

    @property
    def taken(self) -> int:
        """From the beginning: for those who watch."""
        return self._reported + self.used

    def outcome(self) -> tuple[bool, int, int, int, int]:
        """Of what was just taken."""
        return True, self.remaining + self.permits, 0, self.reset_us, 0

    def denial(self, cost: int, now: int) -> tuple[bool, int, int, int, int] | None:
        """If the pool is known to have nothing left."""
        if now >= self.closed_until_us:
            return None
        retry_us = max(1, self._retry_at_us - now)
        if cost > self.meter.params.limit:
            retry_us = NEVER
        return False, self.holds(now), retry_us, self.reset_us, 0

    def server_us(self, now: int) -> int:
        """What time it is at the store, in the window of this lease."""
        return self.offset_us + now

    def is_due(self, now: int) -> bool:
        """Is it time to ask, before it is needed?"""
        if self.is_asking(now) or now < self._ask_again_us:
            return False
        return (self.permits <= self.low and self.wanted > 0) or now >= self._renew_us

    def due_us(self) -> int:
        """When to look at it again, unless it runs low before."""
        if self.in_flight:
            return self._sent_us + self._patience_us
        if self.permits <= self.low and self.wanted > 0:
            return self._ask_again_us
        return max(self._ask_again_us, self._renew_us)

    def is_idle(self, now: int) -> bool:
        """It holds nothing, and nothing is asked of it."""
        return not (self.is_asking(now) or self.wanted or self.used or self.holds(now))

    def begin(self, now: int, nodes: int, cost: int = 0, leave: bool = False) -> LeaseRequest:
        """Ask; with a `cost`, for a request that found too little here. `finish` or `lose` must follow."""
        self._estimate(now)
        held = self.holds(now)
        start = self._start(nodes)
        want = 0
        if not leave and (self.wanted or cost):
            want = self._target if self._base else max(start, self._target)
        keep = 0
        if want and not cost:
            keep = min(held, 2 * max(want, start) if self._is_plenty() else 2 * want)
        self.wanted = 0
        self.in_flight = True
        self.permits = keep
        self._sent_us = now
        self._seq += 1
        self._asked_used, self._asked_keep = self.used, keep
        limit = self.meter.limit
        return LeaseRequest(
            self._node,
            cost,
            self._seq,
            self._base,
            self.used,
            keep,
            max(0, want - keep),
            start=start,
            refill=limit.rpu * REFILL_US // limit.unit_us,
            ttl_us=self._terms.ttl_us,
        )

    def _is_plenty(self) -> bool:
        """The pool is half full: what is held here nobody misses."""
        return 2 * self.remaining > self.meter.params.limit

    def _start(self, nodes: int) -> int:
        """A part of the limit, at most what each would get if all came."""
        most = self.meter.params.limit
        return max(1, min(most * self._terms.start_percent // 100, most // max(1, nodes)))

    def finish(self, ask: LeaseRequest, grant: LeaseGrant | None, server_us: int, now: int) -> None:
        """The reply has come. None: it was overtaken."""
        if not self._is_latest(ask):
            return
        if grant is None:
            self.in_flight = False
            return
        self.in_flight = False
        self._base = self._seq
        self.used -= self._asked_used
        self._reported += self._asked_used
        if grant.kept < self._asked_keep:
            # It came when the lease was over there: all that was held counts as used, with what was used since.
            self._reported += self.used
            self.permits, self.used = 0, 0
        self.permits += grant.granted
        self._asked_used = 0
        self.ends_us = self._sent_us + grant.valid_us
        self._renew_us = self._sent_us + min(grant.valid_us, self._terms.ttl_us) // 2
        self._server_us, self.offset_us = server_us, server_us - self._sent_us
        self.remaining, self.reset_us = grant.remaining, grant.reset_us
        took = now - self._sent_us
        self._latency_us = took if not self._latency_us else (3 * self._latency_us + took) // 4
        if not grant.remaining:
            self._close(grant)

    def lose(self, ask: LeaseRequest) -> None:
        """What became of it is unknown: what it reported is said again with the next, as part of that. It may be counted, so it is
        not put back here: used again later, it would count as used then."""
        if self._is_latest(ask):
            self.in_flight = False

    def _is_latest(self, ask: LeaseRequest) -> bool:
        return (ask.node, ask.seq) == (self._node, self._seq)

    def forget_empty(self) -> None:
        """The pool may have something by now: its counter was reset."""
        self.closed_until_us = self._ask_again_us = 0

    def _close(self, grant: LeaseGrant) -> None:
        rate = self.meter.limit.rpu * SECOND_US / self.meter.limit.unit_us
        pause = int(SHARE * grant.askers * SECOND_US / rate)
        wait = pause
        if not grant.granted and grant.retry_us > 0:
            pause, wait = max(HORIZON_US, grant.retry_us), grant.retry_us
        self._ask_again_us = self._sent_us + max(HORIZON_US, min(EMPTY_US, pause))
        self.closed_until_us = self._sent_us + EMPTY_US
        self._retry_at_us = self._sent_us + wait

    def _estimate(self, now: int) -> None:
        """How much is asked of it, and so how much it should hold."""
        passed = max(1_000, now - self._counted_us)
        seen = self.wanted * SECOND_US / passed
        weight = min(1.0, passed / HORIZON_US)
        self._per_second += (seen - self._per_second) * weight
        self._counted_us = now
        horizon_us = REFILL_US if self._is_plenty() else max(HORIZON_US, 2 * self._latency_us)
        rate = self._per_second / SECOND_US
        batch = max(rate * horizon_us, min(BATCH, rate * self._terms.ttl_us / 4))
        self._target = max(1, int(batch))
        self.low = self._target // 2


def is_fast_enough(meter: CounterSpec) -> bool:
    """Of a slow limit there is nothing to hand out in batches. Nor of one whose tiers count together: a permit is of one of them."""
    limit, family = meter.limit, meter.family
    if family is not None and family.tiers:
        return False
    return limit.rpu * SECOND_US >= LEAST_RATE * limit.unit_us
