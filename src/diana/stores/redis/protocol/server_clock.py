"""What time it is at the server, as far as its replies tell; never ahead of it."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns

from diana.core.duration import SECOND_US


def monotonic_us() -> int:
    return monotonic_ns() // 1_000


class ServerClock:
    """A reply with the server's time S that came at t says: when it is t here, it is at least S there.

    The best of those is kept, until a reply shows that the server's clock was set back.
    """

    def __init__(self, when_set_back: Callable[[], None] = lambda: None) -> None:
        """`when_set_back` is called when the clock was set back by more than the second that an algorithm waits for."""
        self._offset_us: int | None = None
        self._when_set_back = when_set_back

    def hear(self, server_us: int, sent_us: int) -> None:
        known, came = self._offset_us, server_us - monotonic_us()
        if known is None or came > known:
            self._offset_us = came
        elif server_us - sent_us < known:
            self._offset_us = came
            if server_us - sent_us < known - SECOND_US:
                self._when_set_back()

    def at(self, here_us: int) -> int | str:
        """Empty while nothing was heard yet."""
        return "" if self._offset_us is None else here_us + self._offset_us

    @property
    def is_set(self) -> bool:
        return self._offset_us is not None

    def forget(self) -> None:
        self._offset_us = None
