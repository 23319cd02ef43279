"""The server: what its scripts do, as pure functions. That they do the same in Lua is tested elsewhere, against real servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diana.core.contracts import State
from diana.core.counter import CounterSpec
from diana.stores.redis.leases.lease_request import LeasePool, LeaseRequest, answer
from diana.stores.redis.maintenance.heartbeat import SILENCE_MS
from diana.stores.redis.protocol.scripts import (
    STALE,
    TOO_LATE,
    scripts,
    state_from_wire,
    wire_state,
)
from tests.simulation.world import BEGIN_US, World


class SimulatedStore:
    """Counters by key, and the nodes that live."""

    def __init__(self, world: World, meter_of: Callable[[str], CounterSpec]) -> None:
        """`meter_of` tells, by a node's name, which meter its rules have now."""
        self._world = world
        self._meter_of = meter_of
        self.pools: dict[bytes, LeasePool] = {}
        self._nodes: dict[str, tuple[int, int]] = {}
        self._by_sha = {script.sha: name for name, script in scripts().items()}

    def register(self, node: str) -> None:
        """It was there before the world began."""
        self._nodes[node] = (self.now, 1)

    @property
    def now(self) -> int:
        return BEGIN_US + self._world.now

    def execute(self, node: str, words: tuple[Any, ...]) -> Any:
        _, sha, count, *rest = words
        keys, argv = rest[: int(count)], rest[int(count) :]
        run = getattr(self, f"_{self._by_sha[sha]}")
        return run(node, keys, argv)

    def _lease(self, sender: str, keys: list[bytes], argv: list[Any]) -> list[Any]:
        _, latest, tag, _, _, _, node, writes, *numbers = argv
        if self._is_late(latest):
            return [self.now, tag, TOO_LATE]
        cost, seq, base, used, keep, want, start, refill, ttl_us, *_ = numbers
        ask = LeaseRequest(
            node, cost, seq, base, used, keep, want, start, refill, ttl_us, writes=bool(writes)
        )
        pool = self.pools.get(keys[0], LeasePool())
        pool, grant = answer(pool, self._meter_of(sender), ask, self.now)
        self.pools[keys[0]] = pool
        if grant is None:
            return [self.now, tag, STALE, 0, 0, 0, 0, 0, 0, 0]
        return [self.now, tag, int(grant.passed), *grant[1:]]

    def _acquire(self, sender: str, keys: list[bytes], argv: list[Any]) -> list[Any]:
        """What was admitted without the store: as much of it as fits."""
        _, latest, tag, *rest = argv
        if self._is_late(latest):
            return [self.now, tag, TOO_LATE]
        meter, answers = self._meter_of(sender), []
        for place, key in enumerate(keys):
            word, _, _, amount = rest[4 * place : 4 * place + 4]
            assert word == "fill"
            state = self._state(key)
            room = meter.decide(state, meter.params, 0, self.now)[1][1]
            if filled := min(room, amount):
                self._write(key, meter.decide(state, meter.params, filled, self.now)[0])
            answers.append([1, 1, room - filled, 0, 0, 0])
        return [self.now, tag, *answers]

    def _read(self, _: str, keys: list[bytes], __: list[Any]) -> list[Any]:
        return [self._time(), *(self._text(key) for key in keys)]

    def _swap(self, _: str, keys: list[bytes], argv: list[Any]) -> list[Any]:
        latest, *rest = argv
        if self._is_late(latest):
            return [TOO_LATE]
        for place, key in enumerate(keys):
            if (self._text(key) or b"") != (rest[3 * place] or b""):
                return [0, self._time(), *(self._text(key) for key in keys)]
        for place, key in enumerate(keys):
            after = rest[3 * place + 1]
            if after not in ("", b"", "-", b"-"):
                self._write(key, state_from_wire(after))
        return [1]

    def _beat(self, _: str, __: list[bytes], argv: list[Any]) -> list[Any]:
        node, _said, silence_ms, weight = argv
        if silence_ms == 0:
            self._nodes.pop(node, None)
        else:
            self._nodes[node] = (self.now, weight)
        heard = self.now - SILENCE_MS * 1_000
        self._nodes = {one: told for one, told in self._nodes.items() if told[0] >= heard}
        return [len(self._nodes), self._time(), sum(weight for _, weight in self._nodes.values())]

    def _is_late(self, latest: Any) -> bool:
        return latest not in ("", b"") and self.now > int(latest)

    def _state(self, key: bytes) -> State | None:
        return self.pools.get(key, LeasePool()).state

    def _text(self, key: bytes) -> bytes | None:
        state = self._state(key)
        return None if state is None else wire_state(state)

    def _write(self, key: bytes, state: State | None) -> None:
        self.pools[key] = self.pools.get(key, LeasePool())._replace(state=state)

    def _time(self) -> list[bytes]:
        return [str(self.now // 1_000_000).encode(), str(self.now % 1_000_000).encode()]
