"""Where used signatures are remembered: in one process, and by several workers together."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from diana import ConfigError
from diana.core.filter_settings import GatewayWorkers
from diana.gateway.filters.signature import Signature, signature
from diana.gateway.filters.used_signatures import (
    CAPACITY,
    ProcessReplays,
    Replay,
    ReplayMemory,
    ZoneReplays,
)
from tests.stores.shared.zones import zone_name

NEW, REPEATED, NO_ROOM = Replay.NEW, Replay.REPEATED, Replay.NO_ROOM


@pytest.fixture(params=["process", "zone"])
def replays(request: pytest.FixtureRequest) -> Iterator[ReplayMemory]:
    if request.param == "process":
        yield ProcessReplays(10)
    else:
        with zone_name() as name:
            yield ZoneReplays(name, 8)


def signed(number: int) -> bytes:
    return sha256(str(number).encode()).digest()


def test_a_signature_is_known_to_the_last_microsecond_of_its_window(replays: ReplayMemory) -> None:
    late, early = signed(1), signed(2)
    assert replays.add(late, 200, 1) is NEW
    assert replays.add(early, 100, 1) is NEW
    assert replays.add(early, 100, 100) is REPEATED
    assert replays.add(early, 150, 101) is NEW
    assert replays.add(late, 200, 200) is REPEATED


def test_nothing_is_evicted_when_there_is_no_room(replays: ReplayMemory) -> None:
    first = [replays.add(signed(number), 100, 1) for number in range(20)]
    assert {NEW, NO_ROOM} == set(first)
    again = [replays.add(signed(number), 100, 2) for number in range(20)]
    assert again == [REPEATED if result is NEW else NO_ROOM for result in first]
    later = [replays.add(signed(number), 300, 101) for number in range(20)]
    assert later.count(NEW) == first.count(NEW) >= 8


def test_a_large_table_has_room_for_all_that_it_is_made_for() -> None:
    capacity = 4_000
    with zone_name() as name:
        replays = ZoneReplays(name, capacity)
        found = [replays.add(signed(number), 100, 1) for number in range(capacity)]
    assert set(found) == {NEW}


def count_new(name: str, there: Any) -> None:
    replays = ZoneReplays(name)
    there.send(sum(replays.add(signed(number), 2, 1) is NEW for number in range(2_000)))


def test_of_several_processes_exactly_one_lets_each_signature_pass() -> None:
    context = multiprocessing.get_context("spawn")
    with zone_name() as name:
        ends = []
        for _ in range(3):
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=count_new, args=(name, there))
            process.start()
            ends.append((process, here))
        assert sum(here.recv() for _, here in ends) == 2_000
        for process, _ in ends:
            process.join()
        assert ZoneReplays(name).add(signed(0), 2, 1) is REPEATED, "it stays while the file does"


def test_several_workers_without_shared_memory_are_refused(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_bytes(b"correct horse battery staple")
    wrap = signature.make(None, keys={"app": f"file {secret}"})
    with pytest.raises(ConfigError, match="local_store must be shared://NAME"):
        wrap(None, GatewayWorkers(2, None))
    assert isinstance(wrap(None, GatewayWorkers(1, None)), Signature)


def test_the_memory_of_a_gateway_has_a_name_of_its_own() -> None:
    assert GatewayWorkers(2, "api").name("signatures") == "api-signatures"
    assert len(GatewayWorkers(2, "a" * 64).name("signatures")) <= 64
    assert CAPACITY == 1_000_000
