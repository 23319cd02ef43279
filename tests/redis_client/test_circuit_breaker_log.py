"""What operators read of a store, when several threads have something to say."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

import pytest

from diana.redis_client.circuit_breaker import Breaker
from diana.redis_client.redis_url import Endpoint
from diana.redis_client.reply_errors import UnknownOutcome
from diana.runtime.throttled_log import ThrottledLog


class SlowTopic(str):
    """Two threads that look for it at once wait for each other; one that is alone goes on after a moment."""

    __slots__ = ()
    meeting = threading.Barrier(2)

    def __hash__(self) -> int:
        with suppress(threading.BrokenBarrierError):
            self.meeting.wait(0.2)
        return hash(str(self))


def test_two_threads_say_a_thing_once(caplog: pytest.LogCaptureFixture) -> None:
    notices, topic = ThrottledLog(), SlowTopic("heartbeat")
    threads = [
        threading.Thread(target=notices.warn_once, args=(topic, "heartbeat failed"))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert caplog.messages == ["heartbeat failed"]


def test_what_changed_last_is_said_last(caplog: pytest.LogCaptureFixture) -> None:
    """A thread that stands still between a change and its message is overtaken by another's change."""
    opened, closed = threading.Event(), threading.Event()

    def count(name: str) -> None:
        if name == "breaker_opened":
            opened.set()
            closed.wait()

    breaker = Breaker(Endpoint("h", 1), ThrottledLog(), count, lambda: None, lambda: None)
    opening = threading.Thread(target=breaker.open, args=(UnknownOutcome("no reply"),))
    opening.start()
    opened.wait()
    breaker.close()
    closed.set()
    opening.join()
    assert caplog.messages == [
        "store h:1 unreachable: no reply; counting locally",
        "store h:1 is back; counting globally again",
    ]


def test_a_handler_of_logs_may_lose_the_store_again() -> None:
    class Asking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())
            if len(said) == 2:
                breaker.open(UnknownOutcome("no reply again"))

    said: list[str] = []
    breaker = Breaker(Endpoint("h", 1), ThrottledLog(), lambda _: None, lambda: None, lambda: None)
    handler = Asking()
    log = logging.getLogger("diana")
    log.addHandler(handler)
    breaker.open(UnknownOutcome("no reply"))
    breaker.close()
    log.removeHandler(handler)
    assert said == [
        "store h:1 unreachable: no reply; counting locally",
        "store h:1 is back; counting globally again",
        "store h:1 unreachable: no reply again; counting locally",
    ]
