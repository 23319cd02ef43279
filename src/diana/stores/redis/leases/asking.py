"""An ask as it travels, and what the reply means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diana.core.lease import uncapped
from diana.core.meter import Meter
from diana.stores.redis.leases.pool import Ask, Grant
from diana.stores.redis.protocol.commands import Exchange, TimeLeft, acquire
from diana.stores.redis.protocol.failures import Nonsense
from diana.stores.redis.protocol.lease_in_lua import STALE
from diana.stores.redis.protocol.script import scripts
from diana.stores.redis.protocol.server_clock import ServerClock

MOST_LIMITS = 10_000

Answer = tuple[int, Grant | None]
"""The store's time, and what it grants; None: a later ask was answered before."""


class WireLimits:
    """What of a limit goes over the wire, computed once."""

    def __init__(self) -> None:
        self._known: dict[Meter, tuple[tuple[Any, ...], tuple[int, int]]] = {}

    def of(self, meter: Meter) -> tuple[tuple[Any, ...], tuple[int, int]]:
        """Its first words, and its last: for how long what is held matters, and the most that can pass."""
        known = self._known.get(meter)
        if known is None:
            if len(self._known) >= MOST_LIMITS:
                self._known.clear()
            params: Any = meter.params
            without: Any = uncapped(meter.algorithm, params)
            # From empty to full, and all of it forgotten: longer than that no use of a permit matters.
            full_us = meter.decide(None, params, params.limit, 0)[1][3]
            first = (meter.algorithm.code, _json(params.numbers), _json(without.numbers))
            known = self._known[meter] = first, (full_us // 1_000, params.limit)
        return known


def ask_pool(
    limits: WireLimits,
    clock: ServerClock,
    key: bytes,
    meter: Meter,
    ask: Ask,
    now: int | None,
    waiting: TimeLeft,
    asking: bool = False,
) -> Exchange:
    """Gives an Answer."""
    first, (full_ms, limit) = limits.of(meter)
    argv = (
        *first,
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
        full_ms + ask.ttl_us // 1_000,
        limit,
    )
    keys = [key, lease_key(key)]
    script, numbers = scripts()["lease"], len(Grant._fields)
    reply = yield from acquire(clock, keys, argv, now, waiting, asking, numbers, script)
    return answer_from_wire(reply)


def answer_from_wire(reply: Sequence[Any]) -> Answer:
    at, passed, *numbers = reply
    if passed == STALE:
        return at, None
    if any(number.__class__ is not int for number in numbers):
        raise Nonsense
    return at, Grant(passed == 1, *numbers)


def lease_key(key: bytes) -> bytes:
    """Who holds what of a counter. In the same slot, and under the same namespace."""
    namespace = key.partition(b":")[0]
    return namespace + b":lease:{" + key + b"}"


def _json(numbers: Sequence[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"
