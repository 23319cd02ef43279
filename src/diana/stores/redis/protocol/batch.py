"""Requests that travel together in one script call, small enough to keep the server busy for about half a millisecond."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from diana.stores.redis.protocol.commands import Exchange, TimeLeft, acquire
from diana.stores.redis.protocol.failures import Nonsense
from diana.stores.redis.protocol.server_clock import ServerClock

MOST_COUNTERS = 32
"""In one call; one counter takes the server about 10 µs."""

DENIED_MEANWHILE: Any = object()
"""As an answer: while it waited, another request was denied that settles this one too. The deny cache knows."""


class Ask:
    """One request to be decided: its counters and what the script takes for them."""

    __slots__ = ("argv", "keys", "now")

    def __init__(self, keys: list[bytes], argv: list[Any], now: int | None) -> None:
        self.keys = keys
        self.argv = argv
        self.now = now


class Batch:
    """Of one time and, in a cluster, of one slot."""

    __slots__ = ("asks",)

    def __init__(self, asks: Sequence[Ask]) -> None:
        self.asks = asks

    def exchange(self, clock: ServerClock, waiting: TimeLeft) -> Exchange:
        asks = self.asks
        first = asks[0]
        keys, argv = first.keys, first.argv
        if len(asks) > 1:
            keys = [key for ask in asks for key in ask.keys]
            argv = [word for ask in asks for word in ask.argv]
        reply = yield from acquire(clock, keys, argv, first.now, waiting)
        if len(reply) != len(asks) + 1:
            raise Nonsense
        return reply

    def split(self, reply: Any) -> Iterator[tuple[Ask, Any]]:
        """Each request's own: the time and what the script says to it; or the failure of all."""
        if isinstance(reply, Exception):
            for ask in self.asks:
                yield ask, reply
        else:
            at = reply[0]
            for place, ask in enumerate(self.asks, 1):
                yield ask, (at, reply[place])


def batches_from(asks: Sequence[Ask], slot_of: Callable[[bytes], int] | None) -> list[Batch]:
    """As few calls as they fit into, in the order in which they came."""
    if slot_of is None and len(asks) == 1:
        return [Batch(asks)]
    groups: dict[Any, list[Ask]] = {}
    for ask in asks:
        slot = None if slot_of is None else slot_of(ask.keys[0])
        groups.setdefault((slot, ask.now), []).append(ask)
    return [batch for group in groups.values() for batch in _cut(group)]


def _cut(asks: list[Ask]) -> Iterator[Batch]:
    some: list[Ask] = []
    counters = 0
    for ask in asks:
        if some and counters + len(ask.keys) > MOST_COUNTERS:
            yield Batch(some)
            some, counters = [], 0
        some.append(ask)
        counters += len(ask.keys)
    yield Batch(some)
