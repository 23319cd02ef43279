"""What the store's core wants done, and who does it: `run` for threads, `arun` for tasks.

Several errands at once are sent before any answer is read: to one server down one connection, to several side by side. An errand that
fails answers with its exception; who sent it decides what that means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from threading import Event
from time import monotonic
from typing import Any, NamedTuple

from diana.core.meter import Meter
from diana.stores.redis.connection.client import ClientServer
from diana.stores.redis.connection.server import Server
from diana.stores.redis.protocol.commands import (
    Lost,
    Moved,
    NoLink,
    Spoilt,
    Talk,
    acquire,
    script_call,
)
from diana.stores.redis.protocol.compare_and_swap import Change, swap
from diana.stores.redis.protocol.script import scripts

AnyServer = Server | ClientServer
EXPECTED = (Lost, Moved, NoLink, Spoilt)
SPENT = NoLink("the budget is spent")


class Decide(NamedTuple):
    """Have the script decide one request; answers (time, what it says)."""

    server: AnyServer
    keys: list[bytes]
    argv: list[Any]
    now: int | None
    asking: bool = False

    def talk(self, deadline: float) -> Talk:
        clock = self.server.clock
        reply = yield from acquire(clock, self.keys, self.argv, self.now, deadline, self.asking)
        return reply[0], reply[1]


class Swap(NamedTuple):
    """Compare and swap; answers what was Swapped."""

    server: AnyServer
    keys: list[bytes]
    meters: list[Meter]
    change: Change
    now: int | None
    asking: bool = False

    def talk(self, deadline: float) -> Talk:
        clock = self.server.clock
        return swap(clock, self.keys, self.meters, self.change, self.now, deadline, self.asking)


class Forget(NamedTuple):
    """Reset counters; answers how many there were."""

    server: AnyServer
    keys: list[bytes]
    asking: bool = False

    def talk(self, deadline: float) -> Talk:  # noqa: ARG002
        return script_call(scripts()["reset"], self.keys, (), self.asking)


class Hold(NamedTuple):
    """Hold a talk that is ready."""

    server: AnyServer
    ready: Talk
    asking: bool = False

    def talk(self, deadline: float) -> Talk:  # noqa: ARG002
        return self.ready


class Wait:
    """Until something has happened, at most for the budget."""

    def __init__(self, event: Event) -> None:
        self.event = event


Errand = Decide | Swap | Forget | Hold
Errands = Sequence[Errand] | Wait


def run(errands: Errands, deadline: float) -> list[Any]:
    if isinstance(errands, Wait):
        return [errands.event.wait(max(0.0, deadline - monotonic()))]
    if monotonic() >= deadline:
        return [SPENT] * len(errands)
    if len(errands) == 1:
        first = errands[0]
        try:
            return [first.server.converse(first.talk(deadline), deadline)]
        except EXPECTED as error:
            return [error]
    answers: dict[int, Any] = {}
    by_server: dict[AnyServer, list[int]] = {}
    for place, errand in enumerate(errands):
        by_server.setdefault(errand.server, []).append(place)
    open_talks = []
    for server, places in by_server.items():
        talks = [errands[place].talk(deadline) for place in places]
        try:
            open_talks.append((places, server.begin(talks, deadline)))
        except EXPECTED as error:
            answers.update(dict.fromkeys(places, error))
    for places, finish in open_talks:
        answers.update(zip(places, finish(), strict=True))
    return [answers[place] for place in range(len(errands))]


async def arun(errands: Errands, deadline: float) -> list[Any]:
    if isinstance(errands, Wait):
        return [await _happened(errands.event, deadline)]
    left = deadline - monotonic()
    if left <= 0:
        return [SPENT] * len(errands)
    loop = asyncio.get_running_loop()
    waiting = []
    for errand in errands:
        turn = errand.server.turn_of(loop)
        if isinstance(errand, Decide) and not errand.asking:
            waiting.append(turn.decide(errand.keys, errand.argv, errand.now))
        else:
            waiting.append(turn.converse(errand.talk(deadline)))
    # Somebody's own client is bounded by its own time-outs.
    bounded = all(isinstance(errand.server, Server) for errand in errands)
    try:
        await asyncio.wait(waiting, timeout=left if bounded else None)
    finally:
        for answer in waiting:
            answer.add_done_callback(_heard)
    return [_outcome(answer) for answer in waiting]


def _outcome(answer: asyncio.Future[Any]) -> Any:
    if not answer.done():
        return SPENT
    error = answer.exception()
    if error is not None and not isinstance(error, EXPECTED):
        raise error
    return answer.result() if error is None else error


def _heard(answer: asyncio.Future[Any]) -> None:
    """Whoever asked may have gone; an error that nobody looks at would be complained of."""
    if not answer.cancelled():
        answer.exception()


async def _happened(event: Event, deadline: float) -> bool:
    """Looked at now and then: it is waited for once in the life of a store."""
    while not event.is_set() and monotonic() < deadline:
        await asyncio.sleep(0.001)
    return event.is_set()
