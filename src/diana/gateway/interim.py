"""An upstream's interim answers (1xx), before the one that counts: a few, and only for a while.

aiohttp reads them as long as they come, and each of them begins the read timeout anew.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from aiohttp import TCPConnector
from aiohttp.streams import StreamReader

from diana.gateway.aiohttp_parts import HttpProcessingError, RawResponseMessage, ResponseHandler

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
