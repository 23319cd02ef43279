"""The pool in Lua answers exactly as the pool in Python, and leaves the same behind."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import redis

from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.limit import Limit
from diana.redis_client.time_budget import Budget
from diana.runtime.entry_points import algorithms
from diana.stores.redis.leases.lease_request import (
    LeasePool,
    LeaseRequest,
    Record,
    WireLimits,
    answer,
    ask_pool,
    lease_key,
)
from diana.stores.redis.protocol.scripts import state_from_wire
from diana.stores.redis.protocol.server_clock import ServerClock

BEGIN_US = 1_700_000_000_000_000
METERS: dict[str, list[tuple[int, dict[str, Any]]]] = {
    "TB": [(7, {}), (1000, {"burst": 50}), (333, {"burst": 400})],
    "W": [(20, {}), (1000, {}), (50, {"align": "first"})],
    "SW": [(20, {}), (1000, {})],
}


def asked(server: Any, key: bytes, meter: CounterSpec, ask: LeaseRequest, now: int) -> Any:
    steps = ask_pool(WireLimits(), ServerClock(), key, meter, ask, now, Budget(1.0))
    command = next(steps)
    reply: Any = None
    try:
        while True:
            try:
                reply = server.execute_command(*command.words)
            except redis.exceptions.NoScriptError:
                import hiredis

                reply = hiredis.ReplyError("NOSCRIPT")
            command = steps.send(reply)
    except StopIteration as done:
        return done.value[1]


def left_behind(server: redis.Redis, key: bytes) -> tuple[Any, dict[str, Record], int]:
    held: Any = server.hgetall(lease_key(key))
    sums = held.pop(b"", None)
    records = {
        node.decode(): Record(*map(int, numbers.split(b","))) for node, numbers in held.items()
    }
    total, _, last = map(int, sums.split(b",")) if sums else (0, 0, 0)
    assert total == sum(record.held for record in records.values())
    text: Any = server.get(key)
    return state_from_wire(text), records, last


@pytest.mark.parametrize("code", METERS)
@pytest.mark.parametrize("seed", range(12))
def test_python_and_lua_agree(server: redis.Redis, code: str, seed: int) -> None:
    chance = Random(f"{code} {seed}")
    key = f"diana:pool {code} {seed}|k".encode()
    server.delete(key, lease_key(key))
    choices = [
        meter_from_limit("diana:x", Limit(rpu, 1_000_000), algorithms()[code], options)
        for rpu, options in METERS[code]
    ]
    meter, pool, now = choices[0], LeasePool(), BEGIN_US
    seqs = dict.fromkeys("abc", 0)
    for step in range(150):
        if chance.random() < 0.05:
            meter = chance.choice(choices)
        now += chance.choice((0, 1, 137, 5_000, 60_000, 400_000))
        if chance.random() < 0.02:
            now -= 3_000_000
        node = chance.choice(("", *seqs))
        if node:
            seqs[node] += chance.choice((0, 1, 1, 1, 1))
        seq = seqs.get(node, 0)
        known = pool.records.get(node)
        ask = LeaseRequest(
            node=node,
            cost=chance.choice((0, 0, 1, 3)),
            seq=seq,
            base=chance.choice(
                (max(0, seq - 1), known.seq if known else 0, known.base if known else 0)
            ),
            used=chance.randrange(12),
            keep=chance.choice((0, 5, 100)),
            want=chance.choice((0, 1, 10, 1000)),
            start=chance.choice((1, 5, 100)),
            refill=chance.choice((0, 10, 100)),
            ttl_us=chance.choice((100_000, 1_000_000)),
            writes=not (node == "" and chance.random() < 0.3),
        )
        pool, expected = answer(pool, meter, ask, now)
        assert asked(server, key, meter, ask, now) == expected, (step, ask)
        assert left_behind(server, key) == tuple(pool), (step, ask)
