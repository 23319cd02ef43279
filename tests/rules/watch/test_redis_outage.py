"""A Redis that freezes or dies, at the start and in the middle of a watch: the last good rules decide, and it heals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from diana import Guard
from tests.rules.documents import ANY, document, local_file
from tests.rules.patience import ANSWER_SECONDS
from tests.servers.programs import VALKEY_9
from tests.servers.proxy import FaultProxy
from tests.servers.server import Server
from tests.servers.waiting import until

KEY = "diana:rules"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(VALKEY_9) as server:
        publish(server, 7)
        yield server


def publish(server: Server, rpu: int) -> None:
    server.ask("SET", KEY, document(rpu))
    server.ask("PUBLISH", KEY, "changed")


def limit(guard: Guard) -> int:
    return guard.check(ANY).decisions[0].limit


def started(file: Path) -> Guard:
    """A start is delayed by a second at most, whatever the centre does; on a machine that stands still, by less than for ever."""
    begin = monotonic()
    guard = Guard.from_file(file)
    assert monotonic() - begin < ANSWER_SECONDS - 5
    return guard


@pytest.mark.usefixtures("starts_soon")
def test_frozen_at_the_start(server: Server, tmp_path: Path) -> None:
    server.freeze()
    guard = started(local_file(tmp_path, server.url))
    assert limit(guard) == 1
    until(lambda: guard.problems, "the problem is seen")
    server.thaw()
    until(lambda: limit(guard) == 7, "it heals")
    until(lambda: guard.problems == (), "all is well")
    guard.close()


@pytest.mark.usefixtures("starts_soon")
def test_dead_at_the_start(server: Server, tmp_path: Path) -> None:
    server.kill()
    guard = started(local_file(tmp_path, server.url))
    assert limit(guard) == 1
    server.restart()
    until(lambda: guard.problems and "there is no key" in guard.problems[0].message, "it is empty")
    assert limit(guard) == 1
    publish(server, 7)
    until(lambda: limit(guard) == 7, "it heals")
    guard.close()


def test_frozen_in_the_middle_of_a_watch(server: Server, tmp_path: Path) -> None:
    guard = started(local_file(tmp_path, server.url))
    server.freeze()
    until(lambda: guard.problems, "the problem is seen")
    assert limit(guard) == 7
    server.thaw()
    publish(server, 8)
    until(lambda: limit(guard) == 8, "it heals")
    until(lambda: guard.problems == (), "all is well")
    guard.close()


def test_dead_in_the_middle_of_a_watch_and_back_with_nothing(
    server: Server, tmp_path: Path
) -> None:
    guard = started(local_file(tmp_path, server.url))
    server.kill()
    until(lambda: guard.problems, "the problem is seen")
    server.restart()
    until(lambda: "there is no key" in guard.problems[0].message, "it is empty")
    assert limit(guard) == 7, "a missing key is never no limits"
    publish(server, 9)
    until(lambda: limit(guard) == 9, "it heals")
    guard.close()


def test_what_changed_while_the_line_was_cut_is_read_after_the_reconnection(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diana.rules.backends.redis.POLL_SECONDS", 3_600)
    with FaultProxy(server.port) as proxy:
        guard = started(local_file(tmp_path, proxy.url))
        assert limit(guard) == 7
        proxy.refuse()
        until(lambda: guard.problems, "the problem is seen")
        publish(server, 8)
        assert limit(guard) == 7
        proxy.pass_on()
        until(lambda: limit(guard) == 8, "it is read again")
        guard.close()


def test_cut_in_the_middle_of_a_document(server: Server, tmp_path: Path) -> None:
    with FaultProxy(server.port) as proxy:
        guard = started(local_file(tmp_path, proxy.url))
        proxy.half_reply()
        publish(server, 8)
        until(lambda: guard.problems, "the problem is seen")
        assert limit(guard) == 7
        proxy.pass_on()
        until(lambda: limit(guard) == 8, "it heals")
        guard.close()


def test_a_document_of_ten_megabytes(server: Server, tmp_path: Path) -> None:
    guard = started(local_file(tmp_path, server.url))
    server.ask("SET", KEY, b"#" * 10_000_000)
    server.ask("PUBLISH", KEY, "changed")
    until(lambda: guard.problems, "the problem is seen")
    assert "more than 1,048,576 bytes" in guard.problems[0].message
    assert limit(guard) == 7
    publish(server, 8)
    until(lambda: limit(guard) == 8, "it heals")
    guard.close()
