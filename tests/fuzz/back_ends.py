"""What is compared: memory and zones, each in C and in Python, and servers. All are opened once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from diana.core.contracts import Store
from diana.stores.memory import in_python
from diana.stores.native import kernels
from diana.stores.redis.store import RedisStore
from diana.stores.shared.store import SharedStore
from tests.fuzz.model import Model
from tests.servers.server import Server
from tests.stores.redis.counting import opened
from tests.stores.shared.zones import zone_name

ZONE_SIZE = 8 << 20
RUNS_PER_CLEARING = 100


@dataclass
class BackEnd:
    """A store, and one of the same kind beside it, for rules of scope local."""

    name: str
    store: Store
    local: Store
    clear: Callable[[], None]
    histories: int = 0
    decisions: int = 0


@dataclass
class BackEnds:
    model: BackEnd
    others: list[BackEnd]
    runs: int = 0

    def __iter__(self) -> Iterator[BackEnd]:
        return iter([self.model, *self.others])

    def next_namespace(self) -> str:
        """No run finds what an earlier one has counted."""
        if self.runs % RUNS_PER_CLEARING == 0:
            for one in self:
                one.clear()
        self.runs += 1
        return f"run{self.runs}"

    def report(self) -> str:
        told = [f"{one.name:<18} {one.histories:>10,} {one.decisions:>10,}" for one in self.others]
        return "\n".join([f"{'back end':<18} {'histories':>10} {'decisions':>10}", *told])


@contextmanager
def back_ends(servers: Mapping[str, Server]) -> Iterator[BackEnds]:
    """On running servers, by their names."""
    with ExitStack() as stack:
        made = [_counted_here("memory in Python", in_python.MemoryStore)]
        if kernels() is not None:
            made.append(_counted_here("memory in C", _memory_in_c))
            made.append(_zones("native", "zone in C", stack))
        made.append(_zones("python", "zone in Python", stack))
        for place, (name, server) in enumerate(servers.items()):
            store = stack.enter_context(opened(server.url))
            made.append(_on_server(name, server, store, made[place % len(made)].local))
        yield BackEnds(_counted_here("model", Model), made)


def _memory_in_c() -> Any:
    from diana.stores.memory.in_c import MemoryStore

    return MemoryStore()


def _counted_here(name: str, make: Callable[[], Any]) -> BackEnd:
    store, local = make(), make()

    def clear() -> None:
        store.clear()
        local.clear()

    return BackEnd(name, store, local, clear)


def _zones(kind: str, name: str, stack: ExitStack) -> BackEnd:
    def make() -> SharedStore:
        store = SharedStore(stack.enter_context(zone_name()), ZONE_SIZE, kind=kind)
        stack.callback(store.close)
        return store

    return _counted_here(name, make)


def _on_server(name: str, server: Server, store: RedisStore, local: Store) -> BackEnd:
    return BackEnd(name, store, local, lambda: server.ask("FLUSHALL"))
