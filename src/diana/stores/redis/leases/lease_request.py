"""What a node asks of a counter's pool, how it travels, and the reply; and the pool as a pure function (`answer`).

The script `lease` does exactly what `answer` does; the tests compare the two.

A counter's pool is its state, as for any other scope, and beside it what each node holds. Permits that a node holds are neither used nor
free: they do not leak and do not age until the node reports them. So

    used + all held + granted <= capacity        at every grant

and whatever was admitted in an interval was either held at its beginning or granted in it: never more than the algorithm promises.

A report and the next grant are one step. Reports are cumulative since the last grant that the node knows of (`base`), so one whose
reply was lost may be said again: what is counted is the difference, and a grant that never arrived comes back. A number (`seq`) fences
asks that were overtaken.

                 ask 7, base 6, used 40        ask 8, base 6, used 55          reply to 8
    node    ────┬──────────────────── ✗ ──────┬───────────────────────────────▲──────▶
    store       ╰─▶ +40 used, 20 granted      ╰─▶ +15 used, 20 come back, 20 granted
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from diana.core.contracts import State
from diana.core.counter import CounterSpec
from diana.core.decision import NEVER
from diana.core.duration import SECOND_US
from diana.core.settings import uncapped
from diana.redis_client.reply_errors import ProtocolError
from diana.stores.redis.protocol.commands import Exchange, TimeLeft, acquire
from diana.stores.redis.protocol.scripts import STALE, scripts, slowest_params, wire_numbers
from diana.stores.redis.protocol.server_clock import ServerClock


class Record(NamedTuple):
    """What one node holds of a counter."""

    seq: int
    base: int
    used: int
    """Reported since `base`, and counted."""
    held: int
    expires_us: int
    ends_us: int
    """When its window is over, and with it the lease; 0: it is in no window."""


class LeasePool(NamedTuple):
    state: State | None = None
    records: Mapping[
        str, Record
    ] = {}  # a NamedTuple's defaults are shared, and this one is never changed
    last_us: int = 0
    """When a node last asked: a clock that was set back shows."""

    @property
    def held(self) -> int:
        return sum(record.held for record in self.records.values())


class LeaseRequest(NamedTuple):
    """What a node says and wants. Without a name it has no lease: a charge, and no more."""

    node: str = ""
    cost: int = 0
    """To be charged now."""
    seq: int = 0
    base: int = 0
    used: int = 0
    keep: int = 0
    """What it goes on holding; all else comes back."""
    want: int = 0
    start: int = 0
    """At most so much of the first grant."""
    refill: int = 0
    """At most so much of every other, shared among all who ask: what comes back in 100 ms."""
    ttl_us: int = SECOND_US
    writes: bool = True
    """False: it only looks."""


class LeaseGrant(NamedTuple):
    """What the pool answers."""

    passed: bool
    """The charge was made."""
    granted: int
    kept: int
    valid_us: int
    remaining: int
    """Free in the pool, after the charge and the grant."""
    retry_us: int
    """Until the charge would pass, or one permit is free; 0: now."""
    reset_us: int
    askers: int


STALE_REQUEST = None
"""As an answer: a later ask of this node was answered before."""


def answer(
    pool: LeasePool, meter: CounterSpec, ask: LeaseRequest, now: int
) -> tuple[LeasePool, LeaseGrant | None]:
    state, records, last_us = _sweep(pool, meter, now)
    kept = 0
    mine = records.get(ask.node) if ask.node else None
    is_first = mine is None
    if mine is not None:
        if ask.seq <= mine.seq:
            return LeasePool(state, records, last_us), STALE_REQUEST
        delta = _delta(mine, ask)
        kept = min(ask.keep, mine.held - delta)
        state = _count(state, meter, delta, now)
        del records[ask.node]
    held = sum(record.held for record in records.values()) + kept
    params = meter.params
    _, (_, remaining, _, reset, _) = meter.decide(state, params, 0, now)
    room = remaining - held
    passed, retry = ask.cost <= room or not ask.cost, 0
    if not passed:
        retry = _retry(state, meter, held, ask.cost, ask.ttl_us, now)
    elif ask.cost:
        state, (_, _, _, reset, _) = meter.decide(state, params, ask.cost, now)
        room -= ask.cost
    granted = 0
    askers = len(records)
    end = _window_end(state, meter, now)
    valid = ask.ttl_us if end is None else min(ask.ttl_us, end - now)
    if ask.node and ask.want:
        askers += 1
        most = ask.start if is_first else max(1, ask.refill // askers)
        granted = max(0, min(ask.want, most, room)) if passed else 0
        if not granted and passed:
            retry = _retry(state, meter, held, 1, ask.ttl_us, now)
    if ask.node and (ask.want or kept):
        records[ask.node] = Record(
            ask.seq, ask.base, ask.used, kept + granted, now + ask.ttl_us, end or 0
        )
    grant = LeaseGrant(passed, granted, kept, valid, max(0, room - granted), retry, reset, askers)
    if not ask.writes:
        return pool, grant
    last_us = now if ask.node else last_us
    return LeasePool(state, records, last_us if records else 0), grant


def _sweep(
    pool: LeasePool, meter: CounterSpec, now: int
) -> tuple[State | None, dict[str, Record], int]:
    """Expired leases count as used now: who held them did not say. Those of a window that is over are over with it."""
    state, records, swept = pool.state, dict(pool.records), 0
    back = pool.last_us - now if pool.last_us - now > SECOND_US else 0
    for node, record in pool.records.items():
        if back:
            # The clock was set back: they expire when they would have, and their windows are stamped anew.
            record = record._replace(expires_us=max(1, record.expires_us - back), ends_us=0)
            records[node] = record
        if 0 < record.ends_us <= now:
            del records[node]
        elif record.expires_us <= now:
            swept += record.held
            del records[node]
    return _count(state, meter, swept, now), records, now if back else pool.last_us


def _delta(mine: Record, ask: LeaseRequest) -> int:
    """What was used and not counted yet."""
    if ask.base == mine.seq:
        return min(ask.used, mine.held)
    if ask.base == mine.base:
        return min(max(0, ask.used - mine.used), mine.held)
    return mine.held  # another life of the node: nothing is known of what it did


def _count(state: State | None, meter: CounterSpec, used: int, now: int) -> State | None:
    """What was admitted is counted, also above a limit that was lowered meanwhile."""
    if not used:
        return state
    params = uncapped(meter.algorithm, meter.params)
    room = meter.decide(state, params, 0, now)[1][1]
    counted = min(used, room)
    return meter.decide(state, params, counted, now)[0] if counted else state


def _retry(
    state: State | None, meter: CounterSpec, held: int, cost: int, ttl_us: int, now: int
) -> int:
    """Until so much is free, if nothing comes back before; what is held comes back, or counts, within the ttl."""
    if cost > meter.params.limit:
        return NEVER
    passed, _, retry, _, _ = meter.decide(state, meter.params, held + cost, now)[1]
    if passed:
        return 0
    return ttl_us if retry == NEVER else retry


def _window_end(state: State | None, meter: CounterSpec, now: int) -> int | None:
    end = getattr(meter.algorithm, "lease_end", None)
    return None if end is None else end(state, meter.params, now)


MOST_LIMITS = 10_000

LeaseReply = tuple[int, LeaseGrant | None]
"""The store's time, and what it grants; None: a later ask was answered before."""


class WireLimits:
    """What of a limit goes over the wire, computed once."""

    def __init__(self) -> None:
        self._known: dict[CounterSpec, WireLimit] = {}

    def of(self, meter: CounterSpec) -> WireLimit:
        known = self._known.get(meter)
        longest = None if meter.family is None else meter.family.longest
        if known is None or known.longest is not longest:
            if len(self._known) >= MOST_LIMITS:
                self._known.clear()
            params = meter.params
            without = uncapped(meter.algorithm, params)
            slowest = slowest_params(meter)
            # From empty to full, and all of it forgotten: longer than that no use of a permit matters.
            state, (_, _, _, full_us, _) = meter.decide(None, params, params.limit, 0)
            for other in slowest:
                full_us = max(full_us, meter.decide(state, other, 0, 0)[1][3])
            first = (meter.algorithm.code, wire_numbers(params), wire_numbers(without))
            last = "".join(map(wire_numbers, slowest))
            known = WireLimit(first, full_us // 1_000, params.limit, last, longest)
            self._known[meter] = known
        return known


class WireLimit(NamedTuple):
    first: tuple[str, str, str]
    """The algorithm's code, the limit's numbers, and the same uncapped."""
    full_ms: int
    """For how long what is held matters."""
    most: int
    """The most that can pass."""
    slowest: str
    """The numbers by which the counter is forgotten; empty if they are its own."""
    longest: CounterSpec | None
    """Of the family, when this was computed."""


def ask_pool(
    limits: WireLimits,
    clock: ServerClock,
    key: bytes,
    meter: CounterSpec,
    ask: LeaseRequest,
    now: int | None,
    waiting: TimeLeft,
    asking: bool = False,
) -> Exchange:
    """Gives an Answer."""
    limit = limits.of(meter)
    argv = (
        *limit.first,
        ask.node,
        int(ask.writes),
        ask.cost,
        ask.seq,
        ask.base,
        ask.used,
        ask.keep,
        ask.want,
        ask.start,
        ask.refill,
        ask.ttl_us,
        limit.full_ms + ask.ttl_us // 1_000,
        limit.most,
        limit.slowest,
    )
    keys = [key, lease_key(key)]
    script, numbers = scripts()["lease"], len(LeaseGrant._fields)
    reply = yield from acquire(clock, keys, argv, now, waiting, asking, numbers, script)
    return answer_from_wire(reply)


def answer_from_wire(reply: Sequence[Any]) -> LeaseReply:
    at, passed, *numbers = reply
    if passed == STALE:
        return at, None
    if any(number.__class__ is not int for number in numbers):
        raise ProtocolError
    return at, LeaseGrant(passed == 1, *numbers)


def lease_key(key: bytes) -> bytes:
    """Who holds what of a counter. In the same slot, and under the same namespace."""
    namespace = key.partition(b":")[0]
    return namespace + b":lease:{" + key + b"}"
