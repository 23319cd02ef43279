"""`throttle` answers as the module does, number by number."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from diana import ConfigError
from diana.compat import athrottle, throttle
from diana.plugins import MemoryStore
from diana.stores import open_store
from diana.testing import FakeClock
from tests.servers.server import Server

PUBLISHED = [
    # milliseconds, quantity, and what the module is known to say: limited, limit, remaining, retry_after, reset_after (in ms; -1: none)
    (0, 6, 1, 5, 5, -1, 0),
    (0, 1, 0, 5, 4, -1, 1_000),
    (0, 1, 0, 5, 3, -1, 2_000),
    (0, 1, 0, 5, 2, -1, 3_000),
    (0, 1, 0, 5, 1, -1, 4_000),
    (0, 1, 0, 5, 0, -1, 5_000),
    (0, 1, 1, 5, 0, 1_000, 5_000),
    (3_000, 1, 0, 5, 2, -1, 3_000),
    (3_100, 1, 0, 5, 1, -1, 3_900),
    (4_000, 1, 0, 5, 1, -1, 4_000),
    (8_000, 1, 0, 5, 4, -1, 1_000),
    (9_500, 1, 0, 5, 4, -1, 1_000),
    (9_500, 0, 0, 5, 4, -1, 1_000),
    (9_500, 2, 0, 5, 2, -1, 3_000),
    (9_500, 5, 1, 5, 2, 3_000, 3_000),
]


@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_the_published_numbers(kind: str, redis7: Server) -> None:
    url = f"{redis7.url}?budget=10s"
    clock = FakeClock(1_700_000_000_000_000)
    start = clock()
    # What is opened by its URL stays open: it would miss its server, and say so, while other tests run.
    with closing(MemoryStore() if kind == "memory" else open_store(url)) as store:
        for ms, quantity, limited, limit, remaining, retry_ms, reset_ms in PUBLISHED:
            clock.set(start + ms * 1_000)
            told = throttle(store, "foo", 4, 1, 1, quantity, clock=clock)
            retry = -1 if retry_ms < 0 else -(-retry_ms // 1_000)
            assert told == [limited, limit, remaining, retry, -(-reset_ms // 1_000)]


def test_the_first_of_thirty_a_minute_leaves_fifteen_of_sixteen() -> None:
    assert throttle(MemoryStore(), "user123", 15, 30, 60) == [0, 16, 15, -1, 2]


def test_the_same_for_coroutines() -> None:
    async def main() -> list[list[int]]:
        store, clock = MemoryStore(), FakeClock()
        return [await athrottle(store, "alice", 1, 1, 10, clock=clock) for _ in range(3)]

    assert asyncio.run(main()) == [[0, 2, 1, -1, 10], [0, 2, 0, -1, 20], [1, 2, 0, 10, 20]]


def test_who_comes_back_after_the_told_seconds_passes() -> None:
    store, clock = MemoryStore(), FakeClock()
    assert throttle(store, "alice", 0, 3, 1, clock=clock)[0] == 0
    _, _, _, retry_after, _ = throttle(store, "alice", 0, 3, 1, clock=clock)
    clock.advance(retry_after)
    assert throttle(store, "alice", 0, 3, 1, clock=clock)[0] == 0


def test_a_url_is_opened_once() -> None:
    url = "memory://?max_keys=1234"
    clock = FakeClock()
    assert [throttle(url, "alice", 1, 1, 60, clock=clock)[0] for _ in range(3)] == [0, 0, 1]


@pytest.mark.parametrize(
    ("numbers", "word"),
    [
        ((-1, 1, 1, 1), "max_burst"),
        ((1, 0, 1, 1), "count"),
        ((1, 1, 0, 1), "period"),
        ((1, 1, 1, -1), "quantity"),
        ((1, 1.5, 1, 1), "count"),
        ((1, True, 1, 1), "count"),
    ],
)
def test_numbers_that_cannot_be_meant(numbers: tuple[int, int, int, int], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        throttle("memory://", "alice", *numbers)
