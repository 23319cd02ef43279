"""A client's connection: uvicorn's protocol, and what it leaves open to those who mean harm.

    ╭─ a head ─────────────╮╭─ a body ──────────────────────╮╭─ the next head …
    GET / HTTP/1.1 Host: … │ 5 hello 0  X-Trailer: …       │ GET …
      128 KiB, a minute      between two pieces 128 KiB

uvicorn takes trailers for headers, bounds neither, waits for slow heads and for clients that do not read, reads any number of requests
ahead, and tells only the last of several requests on a connection that its client has left.

A response of unknown length to a client that speaks HTTP/1.0, which has no chunks, ends with the connection.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from diana.gateway.client_limits import DEFAULT, ClientLimits, ConnectionLimit
from diana.gateway.error_response import ErrorResponse
from diana.gateway.head_validation import (
    FULL,
    LARGEST_HEAD,
    NO_HTTP,
    NO_PATH,
    TOO_LARGE,
    final_response,
    refusal_of_handshake,
    refusal_of_head,
)
from diana.gateway.read_backlog import (
    MOST_WAITING,
    PIECE,
    SLICE_SECONDS,
    ReadGate,
    is_little,
    up_to_head,
)
from diana.gateway.slow_readers import UnsentWatch
from diana.gateway.uvicorn_aiohttp_internals import HttpToolsProtocol, RequestResponseCycle
from diana.web.asgi_types import Message


class UntilItCloses:
    """uvicorn's `send` for one answer, which else would be chunked."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._unknown = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            named = {name.lower() for name, _ in message.get("headers", ())}
            self._unknown = b"content-length" not in named
            if self._unknown:
                self._cycle.chunked_encoding = False
        elif self._unknown:
            # uvicorn counts bytes against a length; here each piece is its own.
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)  # type: ignore[arg-type]


LAST_REQUEST_SECONDS = 0.25


class Part(Enum):
    """What a client is sending."""

    NOTHING = 0
    HEAD = 1
    BODY = 2


class HeadRejected(Exception):
    """Ends the parsing; what the client is told is kept on the connection."""


class ClientConnection(HttpToolsProtocol):
    """uvicorn's protocol for clients whose heads never end, or end as something else."""

    flow: ReadGate

    def __init__(
        self, *args: Any, limit: ConnectionLimit, bounds: ClientLimits = DEFAULT, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._limit = limit
        self._bounds = bounds
        self._unsent: UnsentWatch | None = None
        self._unread = memoryview(b"")
        """Of pipelined requests, beyond those that may wait."""
        self._part = Part.NOTHING
        self._size = 0
        """Of the head, and later the trailers, as far as they are read."""
        self._between = 0
        """Bytes since a head, a piece of a body, or a request ended."""
        self._refusal = NO_HTTP
        self._answering: RequestResponseCycle | None = None
        self._deaf = False
        """The connection is a WebSocket now, and another protocol's."""
        self._plain_head: bytes | None = None
        """Of a request that wanted to change to a protocol which nobody speaks here, without that wish."""
        self._patience: asyncio.TimerHandle | None = None
        self._is_ending = False
        """The gateway ends: the next answer is the last."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = ReadGate(transport)
        self._unsent = UnsentWatch(transport, self.loop, self._bounds)
        if self._limit.admit(transport, self.loop):
            self._wait()
        else:
            self._refuse(FULL)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if not self.pipeline and not self._unread and is_little(data):
            self._read(data)
        else:
            self._take(memoryview(b"".join((self._unread, data)) if self._unread else data))

    def shutdown(self) -> None:
        """The gateway ends. A client that waits for nothing may be sending its next request right now: it is given a moment to arrive, so
        that the response can close the connection. A POST that finds the connection closed may not be repeated."""
        if self._part is Part.HEAD or self._unanswered() is None:
            self._is_ending = True
            self.loop.call_later(LAST_REQUEST_SECONDS, self._close_if_unused)
        else:
            super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unsent is not None:
            self._unsent.begin()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unsent is not None:
            self._unsent.end()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline:
            if self._unread:
                self._take_the_rest()
            if self._unanswered() is None:
                self._limit.mark_idle(self.transport)

    def on_message_begin(self) -> None:
        self._part = Part.HEAD
        self._size = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._size += len(name) + len(value) + 4
        if self._size > LARGEST_HEAD:
            self._stop_for(TOO_LARGE)
        # Behind a body they are trailers: nobody has judged them, and nobody shall take them for headers.
        if self._part is Part.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._between = 0
        self._stop_waiting()
        if len(self.url) + self._size > LARGEST_HEAD:
            self._stop_for(TOO_LARGE)
        refusal = refusal_of_head(self.parser.get_http_version(), self.url, self.headers)
        upgrades = self.parser.should_upgrade()
        websocket = upgrades and self._should_upgrade()
        if refusal is None and websocket:
            refusal = refusal_of_handshake(self.url, self.headers)
        elif refusal is None and upgrades and self.parser.get_method() == b"CONNECT":
            refusal = NO_PATH
        if refusal is not None:
            self._stop_for(refusal)
        if upgrades and not websocket:
            self._plain_head = self._head_without_upgrade()
            return
        self._part = Part.BODY
        super().on_headers_complete()
        if self._is_ending and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._between = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._plain_head is not None:
            return
        self._part = Part.NOTHING
        self._between = 0
        self._stop_waiting()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._limit.remove(self.transport)
        self._unread = memoryview(b"")
        if self._unsent is not None:
            self._unsent.end()
        answering = self._unanswered()
        if answering is not None:
            # uvicorn itself tells the request that came last, which may still wait for its turn.
            answering.disconnected = True
            answering.message_event.set()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        self._deaf = True
        self._limit.mark_busy(self.transport)
        super().handle_websocket_upgrade()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        self._limit.mark_busy(self.transport)
        if cycle.scope["http_version"] == "1.0":
            cycle.send = UntilItCloses(cycle)  # type: ignore[method-assign,assignment]
        super()._start_asgi_task(cycle, app)

    def _take(self, data: memoryview) -> None:
        """Reads as many requests as may wait, for as long as others can; the rest is read when they are answered, or a little later."""
        end = self.loop.time() + SLICE_SECONDS if len(data) > PIECE else 0.0
        while data:
            room = MOST_WAITING - len(self.pipeline)
            if room <= 0:
                break
            stop = up_to_head(data[:PIECE], room)
            self._read(data[:stop])
            data = data[stop:]
            if self._deaf or self.transport.is_closing():
                data = memoryview(b"")
            elif data and end and self.loop.time() > end:
                self._limit.backlog.add(self._take_the_rest, self.loop)
                break
        self._unread = data
        if data:
            self.flow.close()

    def _take_the_rest(self) -> None:
        if self._unread and not self.transport.is_closing():
            self._take(self._unread)
            if not self._unread:
                self.flow.open()

    def _read(self, data: bytes | memoryview) -> None:
        self._between += len(data)
        self._parse(data)
        if self._deaf or self.transport.is_closing():
            return
        if self._between > LARGEST_HEAD:
            self._refuse(TOO_LARGE)
        elif self._patience is None and self._is_owed_more():
            self._wait()

    def _parse(self, rest: bytes | memoryview) -> None:
        self._unset_keepalive_if_required()
        while True:
            try:
                if self._plain_head is not None:
                    self._begin_again(self._plain_head)
                self.parser.feed_data(rest)
            except HttpParserError:
                self._refuse(self._refusal)
            except HttpParserUpgrade as upgrade:
                if self._plain_head is not None:
                    rest = rest[upgrade.args[0] :]
                    continue
                self.handle_websocket_upgrade()
            return

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b" ".join([self.parser.get_method(), self.url, b"HTTP/" + version])]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _begin_again(self, head: bytes) -> None:
        """The parser takes the end of a head with `Upgrade` for the end of the request, whatever length it says."""
        self._plain_head = None
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.parser.feed_data(head)

    def _stop_for(self, refusal: ErrorResponse) -> None:
        self._refusal = refusal
        raise HeadRejected

    def _refuse(self, refusal: ErrorResponse) -> None:
        answering = self._unanswered()
        sending = self.cycle if self._part is Part.BODY else None
        # In the middle of another answer, or in its place, it would be read as that.
        if answering is None or (answering is sending and not answering.response_started):
            self.transport.write(final_response(refusal))
        self.transport.close()

    def _unanswered(self) -> RequestResponseCycle | None:
        """The request that is being answered, if there is one."""
        cycle = self._answering
        return None if cycle is None or cycle.response_complete else cycle

    def _is_owed_more(self) -> bool:
        """The rest of a head, of a body that nobody waits for any more, or a request after empty lines."""
        return self._part is Part.HEAD or self._unanswered() is None

    def _wait(self) -> None:
        self._patience = self.loop.call_later(self._bounds.head_seconds, self._lose_patience)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _close_if_unused(self) -> None:
        if not self._deaf and self._unanswered() is None:
            self.transport.close()

    def _lose_patience(self) -> None:
        self._patience = None
        if self._unanswered() is not None:
            self._wait()  # the answer to the request before shall not break off
        else:
            self.transport.close()
