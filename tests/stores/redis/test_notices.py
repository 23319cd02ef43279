"""What operators read of a store, when several threads have something to say."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from diana.stores.redis.notices import Notices


class SlowTopic(str):
    """Two threads that look for it at once wait for each other; one that is alone goes on after a moment."""

    __slots__ = ()
    meeting = threading.Barrier(2)

    def __hash__(self) -> int:
        with suppress(threading.BrokenBarrierError):
            self.meeting.wait(0.2)
        return hash(str(self))


def test_two_threads_say_a_thing_once(caplog: pytest.LogCaptureFixture) -> None:
    notices, topic = Notices(), SlowTopic("heartbeat")
    threads = [
        threading.Thread(target=notices.warn_once, args=(topic, "heartbeat failed"))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert caplog.messages == ["heartbeat failed"]
