"""What many of these tests need: a store that is closed again, a limit, and what a server says it was asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.limit import Limit
from diana.runtime.entry_points import algorithms
from diana.stores.redis.protocol.scripts import scripts
from diana.stores.redis.store import RedisStore
from tests.servers.server import Server

BEGIN_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
PATIENT_US = 10 * SECOND_US
"""A budget for tests that are not about it: a busy machine shall not look like a lost store."""


@contextmanager
def opened(where: Any, **settings: Any) -> Iterator[RedisStore]:
    """A patient store, ready to be asked."""
    make = RedisStore.from_url if isinstance(where, str) else RedisStore.from_client
    store = make(where, **{"budget_us": PATIENT_US, **settings})
    try:
        yield store
    finally:
        store.close()


def meter(
    name: str, code: str = "TB", rpu: int = 5, unit_us: int = SECOND_US, **options: Any
) -> CounterSpec:
    return meter_from_limit(f"diana:{name}", Limit(rpu, unit_us), algorithms()[code], options)


def calls(server: Server, command: str = "evalsha") -> int:
    """How often the server has run a command since it was started, or since `CONFIG RESETSTAT`."""
    stats = server.client().info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


@contextmanager
def acquisitions(server: Server) -> Iterator[list[bytes]]:
    """The calls of `acquire` that the server runs meanwhile, and nothing else: nodes also say that they live."""
    _, text, sha = scripts()["acquire"]
    found: list[bytes] = []
    server.ask("SCRIPT", "LOAD", text)  # or the first would ask twice
    server.ask("CONFIG", "SET", "slowlog-log-slower-than", 0)
    server.ask("CONFIG", "SET", "slowlog-max-len", 10_000)
    server.ask("SLOWLOG", "RESET")
    yield found
    ran = [entry["command"] for entry in server.client().slowlog_get(10_000)]
    server.ask("CONFIG", "SET", "slowlog-log-slower-than", -1)
    found += (one for one in ran if one.upper().startswith(b"EVALSHA " + sha.upper()))


def counters(server: Server) -> dict[bytes, bytes]:
    """All counters and what they hold; what the store publishes about itself is left out."""
    keys = [key for key in server.client().scan_iter() if b"|" in key and b":limit:" not in key]
    return {key: server.ask("DUMP", key) for key in sorted(keys)}
