"""One line per request, written when it is over.

    2026-11-16T02:16:14Z 203.0.113.9 "GET /search?q=shoes HTTP/1.1" 200 5120 3.2ms "curl/8.5.0" allowed
    2026-11-16T02:16:15Z 203.0.113.9 "GET /search?q=shoes HTTP/1.1" 503 312 0.4ms "curl/8.5.0" denied "per address"

Time, client, request, status, bytes of the body, duration, user agent, outcome (allowed, denied, shed; `-` if no rule was asked), and the
rule that denied. What a client chose stands in quotes, and is written with escapes wherever it could end the line, the quotes, or color a
terminal.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Protocol

from diana.core.client_address import LONGEST, Proxies, ip_from_text
from diana.web.admission import VERDICT
from diana.web.asgi_types import App, Message, Receive, Scope, Send

GATHER_SECONDS = 0.05
"""Lines are written together: one system call for all that come in so long."""
LONGEST_FIELD = 1_000


class Stream(Protocol):
    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


class AccessLog:
    """Around a whole chain, so that denied requests are in it too."""

    def __init__(self, app: App, stream: Stream, proxies: Proxies) -> None:
        self.app = app
        self._stream = stream
        self._proxies = proxies
        self._lines: list[str] = []
        self._second = 0
        self._stamp = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            try:
                return await self.app(scope, receive, send)
            finally:
                self.write()
        status = size = 0
        began = time.perf_counter()
        note = " aborted"

        def counting(message: Message) -> object:
            nonlocal status, size
            kind = message["type"]
            if kind.endswith(".body"):
                size += len(message.get("body") or b"")
            elif kind.endswith(".start"):
                status = message["status"]
            elif kind == "websocket.accept":
                status = 101
            elif kind == "websocket.close" and not status:
                status = 403
            return send(message)

        try:
            await self.app(scope, receive, counting)  # type: ignore[arg-type]
            note = "" if status else " gone"
        finally:
            seconds = time.perf_counter() - began
            self._add(f"{self._line(scope, status, size, seconds)} {_outcome(scope)}{note}")
        return None

    def write(self) -> None:
        """All lines that wait."""
        lines, self._lines = self._lines, []
        if lines:
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()

    def _add(self, line: str) -> None:
        if not self._lines:
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self.write)
        self._lines.append(line)

    def _line(self, scope: Scope, status: int, size: int, seconds: float) -> str:
        path = (scope.get("raw_path") or b"").decode("latin-1")
        query = scope.get("query_string")
        target = f"{path}?{query.decode('latin-1')}" if query else path
        asked = quoted(f"{scope.get('method', 'GET')} {target} HTTP/{scope['http_version']}")
        agent = next((value for name, value in scope["headers"] if name == b"user-agent"), b"-")
        return (
            f"{self._now()} {self._client(scope)} {asked} {status or '-'} {size} "
            f"{seconds * 1e3:.1f}ms {quoted(agent.decode('latin-1'))}"
        )

    def _now(self) -> str:
        now = int(time.time())
        if now != self._second:
            self._second = now
            self._stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        return self._stamp

    def _client(self, scope: Scope) -> str:
        client = scope.get("client")
        if not client:
            return "-"
        peer: str | None = client[0]
        if self._proxies.trusts(peer):
            lines = [
                value.decode("latin-1")
                for name, value in scope["headers"]
                if name == b"x-forwarded-for"
            ]
            # What a hop is said to be may be anything: only an address is written.
            peer = self._proxies.nearest(peer, lines)
            address = None if peer is None else ip_from_text(peer[:LONGEST])
            return "-" if address is None else str(address)
        return peer or "-"


def _outcome(scope: Scope) -> str:
    verdict = scope.get(VERDICT)
    if verdict is None:
        return "-"
    if verdict.denied_by is not None:
        return f"denied {quoted(verdict.denied_by.name)}"
    return "allowed" if verdict.allowed else "shed" if verdict.shed else "denied"


def quoted(text: str) -> str:
    """In quotes, on one line, in printable characters, and no novel."""
    if len(text) > LONGEST_FIELD:
        text = f"{text[: LONGEST_FIELD - 3]}..."
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return json.dumps(text).replace("\x7f", "\\u007f")
