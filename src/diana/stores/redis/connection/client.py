"""Somebody's own client instead of connections of ours: redis-py's or valkey-py's, synchronous or asynchronous, of one server or a cluster.

Its own time-outs are then the only bound on how long a request waits, and there is no background thread: while it fails, one request a
second is let through to see whether it works again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from threading import Event
from time import monotonic
from typing import Any

from hiredis import ReplyError

from diana.core.errors import ConfigError
from diana.core.exchange import adrive, drive
from diana.core.meter import Meter
from diana.stores.redis.protocol.commands import Command, Lost, ServerClock, Talk, acquire

log = logging.getLogger("diana")

PAUSE = 1.0


class ClientServer:
    """All that a client reaches, as one server."""

    def __init__(self, client: Any, budget: float, count: Callable[..., None]) -> None:
        self.clock = ServerClock()
        self._client = client
        self._is_asynchronous = iscoroutinefunction(client.execute_command)
        self._budget = budget
        self._count = count
        self._lost = False
        self._again = 0.0

    @property
    def down(self) -> bool:
        return self._lost and monotonic() < self._again

    def _try(self) -> None:
        """Whoever asks while it is lost tries; the others go on without."""
        if self._lost:
            self._again = monotonic() + PAUSE

    def lost(self, error: Lost) -> None:
        self._again = monotonic() + PAUSE
        if not self._lost:
            self._lost = True
            self._count("breaker_opened")
            log.warning("the store is lost (%s); each rule does what its when_down says", error)

    def begin(self, talks: Sequence[Talk], deadline: float) -> Callable[[], list[Any]]:  # noqa: ARG002
        return lambda: [_answer_or_error(lambda talk=talk: self._talk(talk)) for talk in talks]  # type: ignore[misc]

    def converse(self, talk: Talk, deadline: float) -> Any:  # noqa: ARG002
        return self._talk(talk)

    def turn_of(self, loop: asyncio.AbstractEventLoop) -> ClientTurn:
        return ClientTurn(self, loop, self._budget)

    async def atalk(self, talk: Talk) -> Any:
        if not self._is_asynchronous:
            return await asyncio.to_thread(self._talk, talk)
        self._try()
        try:
            answer = await adrive(talk, self._aperform)
        except Lost as error:
            self.lost(error)
            raise
        self._found()
        return answer

    def _talk(self, talk: Talk) -> Any:
        if self._is_asynchronous:
            raise ConfigError(
                "this client is asynchronous; use AsyncLimiter or AsyncGuard, or give another client"
            )
        self._try()
        try:
            answer = drive(talk, self._perform)
        except Lost as error:
            self.lost(error)
            raise
        self._found()
        return answer

    def _found(self) -> None:
        if self._lost:
            self._lost = False
            self._count("breaker_closed")
            log.warning("the store is back; counting globally again")

    def _perform(self, step: Command) -> Any:
        self._count("trips")
        try:
            return _in_bytes(self._client.execute_command(*step.words))
        except Exception as error:
            return _as_reply(error)

    async def _aperform(self, step: Command) -> Any:
        self._count("trips")
        try:
            return _in_bytes(await self._client.execute_command(*step.words))
        except Exception as error:
            return _as_reply(error)


class ClientTurn:
    """Each decision by itself: how commands travel is the client's business."""

    def __init__(
        self, server: ClientServer, loop: asyncio.AbstractEventLoop, budget: float
    ) -> None:
        self._server = server
        self._loop = loop
        self._budget = budget

    def decide(self, keys: list[bytes], argv: list[Any], now: int | None) -> asyncio.Future[Any]:
        deadline = monotonic() + self._budget
        return self._loop.create_task(
            self._decide(acquire(self._server.clock, keys, argv, now, deadline))
        )

    def converse(self, talk: Talk) -> asyncio.Future[Any]:
        return self._loop.create_task(self._server.atalk(talk))

    async def _decide(self, talk: Talk) -> tuple[int, Any]:
        reply = await self._server.atalk(talk)
        return reply[0], reply[1]


class ClientTopology:
    def __init__(self, server: ClientServer, has_slots: bool) -> None:
        self.has_slots = has_slots
        self.servers = (server,)

    def server_of_slot(self, slot: int) -> ClientServer:  # noqa: ARG002
        return self.servers[0]

    def server_at(self, endpoint: str) -> None:
        """The client follows by itself."""

    def look(self) -> None:
        """The client knows."""


class ClientKeeper:
    """Nobody keeps a client but its owner."""

    leaves_debts = True

    def __init__(
        self,
        client: Any,
        budget: float,
        count: Callable[..., None],
        when_set_back: Callable[[], None],
    ) -> None:
        has_slots = "Cluster" in type(client).__name__
        self.topology = ClientTopology(ClientServer(client, budget, count), has_slots)
        self.topology.servers[0].clock.when_set_back = when_set_back
        self.looked = Event()
        self.looked.set()

    def ensure(self) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...

    def look_around(self) -> None: ...

    def make_known(self, key: bytes, meter: Meter) -> None: ...


def _answer_or_error(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except ConfigError:
        raise
    except Exception as error:
        return error


def _as_reply(error: Exception) -> ReplyError:
    """What the client made an exception of; raises Lost if the server never said anything."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    if "NoScriptError" in kinds:
        return ReplyError("NOSCRIPT")
    if kinds[0] == "ResponseError":
        return ReplyError(str(error))
    raise Lost(f"{kinds[0]}: {error}") from None


def _in_bytes(reply: Any) -> Any:
    """A client may decode what it reads."""
    if isinstance(reply, str):
        return reply.encode("utf-8", "surrogateescape")
    return [_in_bytes(part) for part in reply] if isinstance(reply, list) else reply
