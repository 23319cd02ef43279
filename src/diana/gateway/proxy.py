"""The end of the chain: a request goes to the upstream, its answer comes back, both piece by piece.

An answer that breaks off is never ended as if it were whole: the client's connection is cut instead, so that it knows.
"""

from __future__ import annotations

import asyncio
import re
from urllib.parse import quote

from aiohttp import ClientError, ClientResponse, ClientSession, ServerTimeoutError
from yarl import URL

from diana.core.client_address import Proxies
from diana.gateway.client_limits import DEFAULT, ClientLimits
from diana.gateway.error_response import ErrorResponse, answer, problem
from diana.gateway.forwarding_headers import RequestLines, response_lines
from diana.gateway.head_validation import CLIMBS, FRAGMENT, NO_PATH
from diana.gateway.path_traversal import escapes_prefix
from diana.gateway.upload_body import DisconnectWatch, Incomplete, Upload
from diana.gateway.upstream import Upstream
from diana.gateway.websocket_relay import relay
from diana.responses.denial_response import Fields
from diana.web.asgi_types import Receive, Scope, Send

UNREACHABLE = problem(502, "The service behind this gateway cannot be reached.")
BROKEN = problem(502, "The service behind this gateway gave no answer that can be passed on.")
TOO_SLOW = problem(504, "The service behind this gateway took too long to answer.")
UNKNOWN_CODING = problem(501, "This gateway knows no transfer coding but chunked.")

_NOT_IN_A_LINE = re.compile(rb"[^!-~]")


class UpstreamLost(Exception):
    """In the middle of its answer; the server cuts the client's connection."""


class Proxy:
    """An ASGI app whose answers are those of an upstream."""

    def __init__(
        self, upstream: Upstream, proxies: Proxies, *, bounds: ClientLimits = DEFAULT
    ) -> None:
        self._upstream = upstream
        self._base = upstream.origin + upstream.prefix
        self._lines = RequestLines(proxies, upstream.own_host, upstream.underscores)
        self._bounds = bounds
        self._pool: ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "lifespan":
            await self._live(receive, send)
        elif _raw_path(scope)[:1] != b"/":
            await answer(NO_PATH, scope, receive, send)
        elif b"#" in _raw_path(scope) or b"#" in scope["query_string"]:
            await answer(FRAGMENT, scope, receive, send)
        elif self._upstream.prefix and escapes_prefix(_raw_path(scope)):
            await answer(CLIMBS, scope, receive, send)
        elif kind == "http":
            await self._forward(scope, receive, send)
        elif kind == "websocket":
            url = self._url(scope)
            lines = self._lines.of(scope)
            await relay(self._connections(), url, lines, scope, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        lines, length, coding, _ = self._lines.of(scope)
        if coding and coding != b"chunked":
            return await answer(UNKNOWN_CODING, scope, receive, send)
        upload = Upload(receive, length, self._bounds) if length else None
        if upload is not None and length < 0 and not coding:
            try:
                length = await upload.length()
            except Incomplete:
                if upload.refusal is not None:
                    await answer(upload.refusal, scope, receive, send)
                return None
            if not length:
                upload = None
            elif length > 0:
                lines.append(("content-length", str(length)))
        departure = DisconnectWatch(receive, upload)
        response: ClientResponse | None = None
        began = whole = False
        try:
            response = await self._connections().request(
                scope["method"],
                self._url(scope),
                headers=lines,
                data=upload,
                allow_redirects=False,
            )
            headers = response_lines(response.raw_headers, response.status)
            began = True
            await _pass_on(response, headers, departure, send)
            whole = upload is None or upload.ended
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not departure.noticed or task is None or task.uncancel():
                raise
        except (ClientError, TimeoutError, OSError, ValueError) as error:
            departure.close()
            if upload is None or not upload.left:
                if began:
                    raise UpstreamLost from error
                refusal = None if upload is None else upload.refusal
                await answer(refusal or _said_of(error), scope, receive, send)
        finally:
            departure.close()
            if response is not None and not whole:
                response.close()
        return None

    def _url(self, scope: Scope) -> URL:
        """Byte for byte as it was asked for; nothing is decoded, joined or made shorter."""
        query: bytes = scope["query_string"]
        raw = _raw_path(scope)
        target = raw + b"?" + query if query else raw
        if _NOT_IN_A_LINE.search(target) is not None:
            # Clients take these out, or end the line there; written so, they mean what the rules judged.
            target = _NOT_IN_A_LINE.sub(lambda found: b"%%%02X" % found[0][0], target)
        return URL(self._base + target.decode("ascii"), encoded=True)

    def _connections(self) -> ClientSession:
        if self._pool is None:
            self._pool = self._upstream.pool()
        return self._pool

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                if self._pool is not None:
                    await self._pool.close()
                    self._pool = None
                return await send({"type": "lifespan.shutdown.complete"})
            await send({"type": "lifespan.startup.complete"})


def _raw_path(scope: Scope) -> bytes:
    """Not all servers keep it."""
    return scope.get("raw_path") or quote(scope["path"]).encode()


async def _pass_on(
    response: ClientResponse, headers: Fields, departure: DisconnectWatch, send: Send
) -> None:
    content = response.content
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    # Most answers are here as a whole with their head.
    while not content.is_eof():
        piece = await content.readany()
        if piece:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    rest = content.read_nowait()
    departure.close()
    await send({"type": "http.response.body", "body": rest})


def _said_of(error: Exception) -> ErrorResponse:
    if isinstance(error, ServerTimeoutError | TimeoutError):
        return TOO_SLOW
    return UNREACHABLE if isinstance(error, OSError) else BROKEN
