"""A store of each kind, as tests need them that hold for all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from diana.stores.c_kernels import kernels
from diana.stores.memory.c_store import CMemoryStore
from diana.stores.memory.python_store import PythonMemoryStore
from diana.stores.zone.store import SharedStore
from tests.servers.server import Server
from tests.stores.redis.counting import opened
from tests.stores.shared.zones import zone_name

STORES = ["memory in C", "memory in Python", "zone in C", "zone in Python", "Redis", "Valkey"]


@pytest.fixture(params=STORES)
def every_store(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, redis7: Server, valkey: Server
) -> Iterator[Any]:
    if request.param.endswith("in C"):
        assert kernels() is not None
    match request.param.split()[0]:
        case "memory":
            kind = CMemoryStore if request.param.endswith("C") else PythonMemoryStore
            yield kind()
        case "zone":
            with zone_name() as name:
                if request.param.endswith("Python"):
                    monkeypatch.setenv("DIANA_NATIVE", "0")
                yield SharedStore(name, 1 << 20)
        case kind:
            server = redis7 if kind == "Redis" else valkey
            server.ask("FLUSHALL")
            with opened(server.url) as store:
                yield store
