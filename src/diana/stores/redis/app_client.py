"""The application's own client instead of connections of ours: redis-py's or valkey-py's, synchronous or asynchronous, of one server or a
cluster.

Its own time-outs are then the only bound on how long a request waits, and there is no background thread: while it fails, one request a
second is let through to see whether it works again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from time import monotonic
from typing import Any

from hiredis import ReplyError

from diana.core.counter import CounterSpec
from diana.core.drive import adrive, drive
from diana.core.errors import ConfigError
from diana.redis_client.reply_errors import (
    Failure,
    ServerRefused,
    UnknownOutcome,
    Unreachable,
)
from diana.redis_client.time_budget import Budget
from diana.stores.redis.pending_refunds import PendingRefunds
from diana.stores.redis.protocol.batch import DecisionRequest
from diana.stores.redis.protocol.commands import Command, Exchange, acquire
from diana.stores.redis.protocol.server_clock import ServerClock

log = logging.getLogger("diana")

PAUSE = 1.0


class ClientServer:
    """All that a client reaches, as one server."""

    def __init__(
        self, client: Any, count: Callable[..., None], when_set_back: Callable[[], None]
    ) -> None:
        self.clock = ServerClock(when_set_back)
        self._client = client
        self._is_asynchronous = iscoroutinefunction(client.execute_command)
        self._count = count
        self._is_failing = False
        self._try_again = 0.0

    @property
    def is_lost(self) -> bool:
        return self._is_failing and monotonic() < self._try_again

    def ask(self, ask: DecisionRequest, budget: Budget) -> Any:
        (answer,) = self.begin([_alone(ask, self.clock, budget)], budget)()
        return answer

    def begin(self, exchanges: Sequence[Exchange], budget: Budget) -> Callable[[], list[Any]]:  # noqa: ARG002
        return lambda: [self._exchange(steps) for steps in exchanges]

    def line_of(self, loop: asyncio.AbstractEventLoop) -> ClientLine:
        return ClientLine(self, loop)

    def fail(self, failure: Failure) -> None:
        self._try_again = monotonic() + PAUSE
        if not self._is_failing:
            self._is_failing = True
            self._count("breaker_opened")
            log.warning("store unreachable: %s; counting locally", failure)

    async def aexchange(self, steps: Exchange) -> Any:
        if not self._is_asynchronous:
            return await asyncio.to_thread(self._exchange, steps)
        self._begin_try()
        try:
            answer = await adrive(steps, self._aperform)
        except Failure as failure:
            return self._note(failure)
        self._recover()
        return answer

    def _exchange(self, steps: Exchange) -> Any:
        if self._is_asynchronous:
            raise ConfigError(
                "this client is asynchronous; use AsyncLimiter or AsyncGuard, or give another client"
            )
        self._begin_try()
        try:
            answer = drive(steps, self._perform)
        except Failure as failure:
            return self._note(failure)
        self._recover()
        return answer

    def _begin_try(self) -> None:
        """The request that asks while it fails tries; the others go on without."""
        if self._is_failing:
            self._try_again = monotonic() + PAUSE

    def _note(self, failure: Failure) -> Failure:
        if isinstance(failure, UnknownOutcome | ServerRefused | Unreachable):
            self.fail(failure)
        return failure

    def _recover(self) -> None:
        if self._is_failing:
            self._is_failing = False
            self._count("breaker_closed")
            log.warning("store is back; counting globally again")

    def _perform(self, step: Command) -> Any:
        self._count("trips")
        try:
            return _in_bytes(self._client.execute_command(*_words(step)))
        except Exception as error:
            return _reply_from_error(error)

    async def _aperform(self, step: Command) -> Any:
        self._count("trips")
        try:
            return _in_bytes(await self._client.execute_command(*_words(step)))
        except Exception as error:
            return _reply_from_error(error)


class ClientLine:
    """Each decision by itself: how commands travel is the client's business."""

    def __init__(self, server: ClientServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop

    def now(self) -> float:
        return monotonic()

    def ask(self, ask: DecisionRequest, budget: Budget) -> asyncio.Future[Any]:
        return self.exchange(_alone(ask, self._server.clock, budget), budget)

    def exchange(self, steps: Exchange, budget: Budget) -> asyncio.Future[Any]:  # noqa: ARG002
        return self._loop.create_task(self._server.aexchange(steps))


class ClientTopology:
    changes_silently = False

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
    """Only its owner keeps a client."""

    settles = False
    has_looked = True

    def __init__(
        self,
        client: Any,
        count: Callable[..., None],
        when_set_back: Callable[[], None],
        refunds: PendingRefunds,
    ) -> None:
        self.refunds = refunds
        # A client of a cluster knows the slot of a key; that of one server has no use for it.
        has_slots = callable(getattr(client, "keyslot", None))
        self.topology = ClientTopology(ClientServer(client, count, when_set_back), has_slots)

    def ensure(self) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...

    def look_around(self) -> None: ...

    def publish_limit(self, key: bytes, meter: CounterSpec) -> None: ...


def _alone(ask: DecisionRequest, clock: ServerClock, budget: Budget) -> Exchange:
    reply = yield from acquire(clock, ask.keys, ask.argv, ask.now, budget)
    return reply[0], reply[1]


def _words(step: Command) -> tuple[Any, ...]:
    """A client of a cluster reads the name of a command, and only as text."""
    name, *rest = step.words
    return (name.decode() if isinstance(name, bytes) else name, *rest)


def _reply_from_error(error: Exception) -> ReplyError:
    """What the client made an exception of; raises what it means if the server never said anything."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    if "NoScriptError" in kinds:
        return ReplyError("NOSCRIPT")
    if kinds[0] == "ResponseError":
        return ReplyError(str(error))
    said = f"{kinds[0]}: {error}"
    if "ResponseError" in kinds or "BusyLoadingError" in kinds:
        raise ServerRefused(said) from None
    if _was_never_sent(error):
        raise Unreachable(said) from None
    raise UnknownOutcome(said) from None


def _was_never_sent(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ConnectionRefusedError | FileNotFoundError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _in_bytes(reply: Any) -> Any:
    """A client may decode what it reads."""
    if isinstance(reply, str):
        return reply.encode("utf-8", "surrogateescape")
    return [_in_bytes(part) for part in reply] if isinstance(reply, list) else reply
