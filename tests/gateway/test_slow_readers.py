"""When a client that does not read is cut, and when it is fast enough: by a clock that only the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from diana.gateway.client_limits import ClientLimits
from diana.gateway.slow_readers import UnsentWatch

BOUNDS = ClientLimits(body_seconds=10, body_rate=100)


class Transport:
    unsent = 50_000
    cut = False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.cut = True


class Loop:
    """Remembers the one timer that is set."""

    timer: Callable[[], object] | None = None

    def call_later(self, seconds: float, call: Callable[[], object]) -> Any:
        assert seconds == BOUNDS.body_seconds
        self.timer = call
        return self

    def cancel(self) -> None:
        self.timer = None

    def ten_seconds_pass(self) -> None:
        call, self.timer = self.timer, None
        assert call is not None
        call()


def watched() -> tuple[Transport, Loop, UnsentWatch]:
    transport, loop = Transport(), Loop()
    watch = UnsentWatch(transport, loop, BOUNDS)  # type: ignore[arg-type]
    watch.begin()
    return transport, loop, watch


def test_a_client_that_takes_the_least_rate_goes_on_for_as_long_as_it_does() -> None:
    transport, loop, _ = watched()
    for _ in range(40):
        transport.unsent -= 1_000
        loop.ten_seconds_pass()
        assert not transport.cut
    transport.unsent -= 999
    loop.ten_seconds_pass()
    assert transport.cut
    assert loop.timer is None


def test_what_is_sent_in_time_is_not_watched_any_more() -> None:
    transport, loop, watch = watched()
    watch.end()
    assert loop.timer is None
    assert not transport.cut


def test_the_watch_of_a_loop_is_one_of_its_timers() -> None:
    async def main() -> bool:
        transport = Transport()
        watch = UnsentWatch(
            transport,  # type: ignore[arg-type]
            asyncio.get_running_loop(),
            ClientLimits(body_seconds=0.01),
        )
        watch.begin()
        while not transport.cut:
            await asyncio.sleep(0.01)
        return transport.cut

    assert asyncio.run(asyncio.wait_for(main(), 20))
