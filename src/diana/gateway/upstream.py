"""The service behind the gateway, and the pool of connections to it.

aiohttp reads interim responses (1xx) without end, and each of them begins the read timeout anew. Here their number and time are bounded.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from aiohttp.streams import StreamReader

from diana.core.errors import ConfigError
from diana.gateway.forwarding_headers import checked_underscores
from diana.gateway.uvicorn_aiohttp_internals import (
    HttpProcessingError,
    RawResponseMessage,
    ResponseHandler,
)

MOST_INTERIM = 16
"""For one request."""
SWITCHING = 101


class UpstreamConnection(ResponseHandler):
    """aiohttp's protocol, which gives up on an upstream that never comes to the point."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._interim = 0
        self._interim_end: asyncio.TimerHandle | None = None

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        if data[0].code >= 200 or data[0].code == SWITCHING:
            if self._interim:
                self._forget()
        elif not self._may_come():
            return
        super().feed_data(data, size)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _may_come(self) -> bool:
        self._interim += 1
        if self._interim == 1 and self.read_timeout:
            self._interim_end = self._loop.call_later(self.read_timeout, self._on_read_timeout)
        if self._interim > MOST_INTERIM:
            if self._interim == MOST_INTERIM + 1:
                self.set_exception(HttpProcessingError(message="too many interim answers"))
            if self.transport is not None:
                self.transport.close()
            return False
        return True

    def _forget(self) -> None:
        self._interim = 0
        if self._interim_end is not None:
            self._interim_end.cancel()
            self._interim_end = None


class UpstreamConnector(TCPConnector):
    """aiohttp's pool, with connections of that kind."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = partial(UpstreamConnection, loop=self._loop)  # type: ignore[assignment]


LARGEST_HEADER = 65_536
"""Bytes of one line, or one field, of an answer's head."""
MOST_HEADERS = 1_000
IDLE_SECONDS = 30.0
"""Connections that nobody used for so long are closed."""
NEVER_ADDED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""The client did not send them, so the upstream does not get them."""


class Upstream(NamedTuple):
    """Where requests go, and how long the gateway waits for an answer."""

    origin: str
    """`http://127.0.0.1:9000`."""
    prefix: str = ""
    """Put before every path: `/v1`."""
    connect_timeout: float = 5.0
    read_timeout: float = 60.0
    """Seconds without a byte."""
    own_host: bool = False
    """The upstream gets its own name as `Host`; else what the client sent."""
    underscores: frozenset[str] = frozenset()
    """Names of header lines with `_` that go on, in small letters; all others stay here."""

    def pool(self) -> ClientSession:
        """Made inside the event loop that uses it."""
        timeout = ClientTimeout(
            total=None,
            connect=None,
            sock_connect=self.connect_timeout,
            sock_read=self.read_timeout,
        )
        return ClientSession(
            # How many may ask at once is for the rules to say.
            connector=UpstreamConnector(limit=0, keepalive_timeout=IDLE_SECONDS, ttl_dns_cache=10),
            timeout=timeout,
            cookie_jar=DummyCookieJar(),
            skip_auto_headers=NEVER_ADDED,
            auto_decompress=False,
            max_line_size=LARGEST_HEADER,
            max_field_size=LARGEST_HEADER,
            max_headers=MOST_HEADERS,
        )


def upstream_from_url(
    url: str,
    *,
    connect_timeout: float = 5.0,
    read_timeout: float = 60.0,
    own_host: bool = False,
    underscores: Iterable[str] = (),
) -> Upstream:
    """`http://127.0.0.1:9000`, or with a prefix for all paths: `https://api.example.org/v1`."""
    advice = "write one such as http://127.0.0.1:9000"
    if not re.fullmatch(r"[!-~]+", url):
        raise ConfigError(f"{url!r} is no URL of a service; {advice}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is no URL of a service ({error}); {advice}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url!r} is no URL of a service; {advice}")
    if parts.username is not None or parts.password is not None:
        raise ConfigError("the upstream's URL holds a name or a password; remove it")
    if parts.query or parts.fragment:
        raise ConfigError("the upstream's URL ends with its path; remove what is behind it")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    origin = f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "")
    return Upstream(
        origin,
        parts.path.rstrip("/"),
        connect_timeout,
        read_timeout,
        own_host,
        checked_underscores(underscores),
    )
