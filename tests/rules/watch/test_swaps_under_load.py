"""Twenty changes under load: in order, within two seconds, no request fails, no count is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import monotonic, sleep
from typing import Self

import pytest

from diana import AsyncGuard, Guard, Request
from diana.rules import open_source
from diana.rules.backends.atomic_file import write_atomically
from diana.rules.backends.etcd import EtcdSource
from diana.rules.backends.redis import RedisSource
from diana.rules.backends.zookeeper import ZooKeeperSource
from tests.rules.documents import version
from tests.servers.etcd import Etcd
from tests.servers.programs import REDIS_7, VALKEY_9
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.servers.web import WebServer
from tests.servers.zookeeper import ZooKeeper

CHANGES = 20
SECONDS = 2.0
"""Within which most changes are in force on any machine, and all on one that never stands still."""
PATIENCE = 30.0
PAUSE = 0.001
"""Between two requests of one caller."""
BLOCKED = Request("GET", "/", {"X-Account-Id": "blocked"})
LOAD = Request("GET", "/load")

Publish = Callable[[bytes], object]


def document(number: int) -> bytes:
    """Each with another limit for the load, and the same for accounts, now and then at another place."""
    accounts = (
        "- {url: /, rules: [{name: accounts, actor: account, missing: skip, unit: day, rpu: 3}]}"
    )
    load = f"- {{url: /load, rules: [{{name: load, unit: hour, rpu: {10**8 + number}}}]}}"
    blocks = [accounts, load] if number % 2 else [load, accounts]
    return "\n".join(["limits:", *blocks, ""]).encode()


@contextmanager
def in_a_file(folder: Path) -> Iterator[tuple[str, Publish]]:
    path = folder / "rules.yaml"
    path.write_bytes(document(0))
    yield str(path), lambda text: write_atomically(path, text)


@contextmanager
def on_the_web(_: Path) -> Iterator[tuple[str, Publish]]:
    with WebServer(document(0)) as web:
        yield web.url, lambda text: setattr(web, "document", text)


@contextmanager
def in_redis(program: str) -> Iterator[tuple[str, Publish]]:
    with Server(program) as server:
        editor = open_source(server.url)
        assert isinstance(editor, RedisSource)
        editor.publish(document(0), None)
        yield server.url, lambda text: editor.publish(text, editor.load())
        editor.close()


@contextmanager
def in_a_centre(server: Etcd | ZooKeeper) -> Iterator[tuple[str, Publish]]:
    with server:
        url = server.url("/rules")
        editor = open_source(url)
        assert isinstance(editor, EtcdSource | ZooKeeperSource)
        editor.publish(document(0), None)
        yield url, lambda text: editor.publish(text, editor.load())
        editor.close()


CENTRES = pytest.mark.parametrize(
    "centre",
    [
        in_a_file,
        on_the_web,
        lambda _: in_redis(REDIS_7),
        lambda _: in_redis(VALKEY_9),
        lambda _: in_a_centre(Etcd()),
        lambda _: in_a_centre(ZooKeeper()),
    ],
    ids=["file", "http", "Redis", "Valkey", "etcd", "ZooKeeper"],
)


class Load:
    """Threads that ask all the time."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._end = Event()
        self.versions: list[list[str]] = [[], [], []]
        self.failures: list[object] = []
        self._threads = [Thread(target=self._ask, args=(seen,)) for seen in self.versions]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, seen: list[str]) -> None:
        while not self._end.wait(PAUSE):
            try:
                verdict = self._guard.check(LOAD)
            except Exception as error:
                self.failures.append(error)
                return
            if not verdict:
                self.failures.append(verdict)
            if seen[-1:] != [verdict.version]:
                seen.append(verdict.version)


@CENTRES
def test_twenty_changes_under_load(
    centre: Callable[[Path], Iterator[tuple[str, Publish]]], tmp_path: Path
) -> None:
    with centre(tmp_path) as (url, publish):  # type: ignore[attr-defined]
        guard = Guard.from_file(url)
        assert [bool(guard.check(BLOCKED)) for _ in range(4)] == [True, True, True, False]
        took = []
        with Load(guard) as load:
            until(lambda: load.failures or all(load.versions), "all have asked")
            for number in range(1, CHANGES + 1):
                wanted = version(document(number))
                publish(document(number))
                published = monotonic()
                while (verdict := guard.check(BLOCKED)).version != wanted:
                    assert not verdict
                    assert monotonic() - published < PATIENCE, f"change {number} is late"
                    sleep(PAUSE)
                took.append(monotonic() - published)
                assert not verdict, f"the count was lost in change {number}"
            until(
                lambda: load.failures or all(seen[-1] == wanted for seen in load.versions),
                "all have seen the last change",
            )
        assert median(took) < SECONDS
        guard.close()
        order = {version(document(number)): number for number in range(CHANGES + 1)}
        assert load.failures == []
        for seen in load.versions:
            assert all(order[one] < order[next] for one, next in pairwise(seen)), "out of order"
            assert len(seen) > 1
        assert guard.problems == ()


@CENTRES
def test_the_same_for_coroutines(
    centre: Callable[[Path], Iterator[tuple[str, Publish]]], tmp_path: Path
) -> None:
    async def serve(url: str, publish: Publish) -> None:
        guard = AsyncGuard.from_file(url)
        assert [bool(await guard.check(BLOCKED)) for _ in range(4)] == [True, True, True, False]
        for number in (1, 2):
            await asyncio.to_thread(publish, document(number))
            published = monotonic()
            while (verdict := await guard.check(BLOCKED)).version != version(document(number)):
                assert not verdict
                assert await guard.check(LOAD)
                assert monotonic() - published < PATIENCE
                await asyncio.sleep(PAUSE)
            assert not verdict
        await guard.close()

    with centre(tmp_path) as (url, publish):  # type: ignore[attr-defined]
        asyncio.run(serve(url, publish))
