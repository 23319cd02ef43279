"""An ask as it travels, and what the reply means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from diana.core.lease import uncapped
from diana.core.meter import CounterSpec
from diana.stores.redis.leases.pool import LeaseGrant, LeaseRequest
from diana.stores.redis.protocol.commands import Exchange, TimeLeft, acquire
from diana.stores.redis.protocol.failures import ProtocolError
from diana.stores.redis.protocol.lease_in_lua import STALE
from diana.stores.redis.protocol.script import scripts, slowest_params, wire_numbers
from diana.stores.redis.protocol.server_clock import ServerClock

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
