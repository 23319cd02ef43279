"""Requests that travel together in one script call, small enough to keep the server busy for about half a millisecond."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from diana.stores.redis.protocol.commands import Acquire, TimeLeft
from diana.stores.redis.protocol.server_clock import ServerClock

MOST_COUNTERS = 32
"""In one call; one counter takes the server about 10 µs."""

DENIED_MEANWHILE: Any = object()
"""As an answer: while it waited, another request was denied that settles this one too. The deny cache knows."""


class DecisionRequest:
    """One request to be decided: its counters and what the script takes for them."""

    __slots__ = ("argv", "is_final", "keys", "now", "waits")

    def __init__(
        self, keys: list[bytes], argv: list[Any], now: int | None, is_final: bool = False
    ) -> None:
        self.keys = keys
        self.argv = argv
        self.now = now
        self.is_final = is_final
        """To be sent whatever the deny cache learns meanwhile."""
        self.waits: Any = None
        """The thread or the future that waits for the answer; its line knows."""


class Batch(Acquire):
    """Requests of one time and, in a cluster, of one slot: one call."""

    __slots__ = ("asks",)

    def __init__(
        self, asks: Sequence[DecisionRequest], clock: ServerClock, waiting: TimeLeft
    ) -> None:
        self.asks = asks
        first = asks[0]
        keys, argv = first.keys, first.argv
        if len(asks) > 1:
            keys = [key for ask in asks for key in ask.keys]
            argv = [word for ask in asks for word in ask.argv]
        super().__init__(clock, keys, argv, first.now, waiting, len(asks))


def groups_of(
    asks: Sequence[DecisionRequest], slot_of: Callable[[bytes], int] | None
) -> list[list[DecisionRequest]]:
    """Those that may travel in one call each: as few calls as they fit into, in the order in which they came."""
    if slot_of is None and len({ask.now for ask in asks}) == 1:
        return list(_cut(asks))
    groups: dict[Any, list[DecisionRequest]] = {}
    for ask in asks:
        slot = None if slot_of is None else slot_of(ask.keys[0])
        groups.setdefault((slot, ask.now), []).append(ask)
    return [some for group in groups.values() for some in _cut(group)]


def _cut(asks: Sequence[DecisionRequest]) -> Iterator[list[DecisionRequest]]:
    some: list[DecisionRequest] = []
    counters = 0
    for ask in asks:
        if some and counters + len(ask.keys) > MOST_COUNTERS:
            yield some
            some, counters = [], 0
        some.append(ask)
        counters += len(ask.keys)
    yield some


def answer_of(place: int, answer: Any) -> Any:
    """To one request of a batch: the time and what the script says to it; or the failure of all."""
    return (answer[0], answer[place]) if answer.__class__ is list else answer
