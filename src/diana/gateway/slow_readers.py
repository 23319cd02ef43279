"""Clients that do not take their answers: there is an end to waiting, and with it the upstream's connection is free again."""

from __future__ import annotations

import asyncio

from diana.gateway.client_limits import ClientLimits


class UnsentWatch:
    """Cuts a connection whose client takes less than the least rate of what waits for it.

    It runs only while the transport says that too much waits, so a client that reads costs nothing.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, bounds: ClientLimits
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._seconds = bounds.body_seconds
        self._least = bounds.body_seconds * bounds.body_rate
        self._unsent = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self.end()
        self._look_later()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        self._unsent = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(self._seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._unsent - self._transport.get_write_buffer_size() < self._least:
            # Not close: that would wait until the rest is sent.
            self._transport.abort()
        else:
            self._look_later()
