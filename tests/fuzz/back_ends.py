"""What is compared: memory and zones, each in C and in Python, and servers. All are opened once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from diana.stores.c_kernels import kernels
from diana.stores.memory import python_store as in_python
from diana.stores.zone.store import SharedStore
from tests.fuzz.model import Model
from tests.servers.server import Server
from tests.stores.redis.counting import opened
from tests.stores.shared.zones import zone_name

ZONE_SIZE = 8 << 20
RUNS_PER_CLEARING = 100


@dataclass
class Compared:
    """How much of a back end."""

    histories: int = 0
    decisions: int = 0
    in_real_time: int = 0
    """Decisions without a fake clock."""


class Tally(defaultdict[str, Compared]):
    """By the name of the back end."""

    def __init__(self) -> None:
        super().__init__(Compared)

    def __str__(self) -> str:
        lines = [f"{'back end':<18} {'histories':>10} {'decisions':>12} {'in real time':>14}"]
        lines += [
            f"{name:<18} {one.histories:>10,} {one.decisions:>12,} {one.in_real_time:>14,}"
            for name, one in self.items()
        ]
        return "\n".join(lines)


@dataclass
class BackEnd:
    """A store, and another beside it, for rules of scope local."""

    name: str
    store: Any
    local: Any
    server: Server | None = None
    """Where the store counts, if not in this process or machine."""
    compared: Compared = field(default_factory=Compared)

    def clear(self) -> None:
        self.local.clear()
        if self.server is None:
            self.store.clear()
        else:
            self.server.ask("FLUSHALL")


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


@contextmanager
def back_ends(servers: Mapping[str, Server], tally: Tally) -> Iterator[BackEnds]:
    """On running servers, by their names."""
    with ExitStack() as stack:
        makers: dict[str, Callable[[], Any]] = {"memory in Python": in_python.PythonMemoryStore}
        if kernels() is not None:
            makers["memory in C"] = _memory_in_c
            makers["zone in C"] = lambda: _zone("native", stack)
        makers["zone in Python"] = lambda: _zone("python", stack)
        made = [
            BackEnd(name, make(), make(), compared=tally[name]) for name, make in makers.items()
        ]
        local = cycle(makers.values())
        for name, server in servers.items():
            store = stack.enter_context(opened(server.url))
            made.append(BackEnd(name, store, next(local)(), server, tally[name]))
        yield BackEnds(BackEnd("model", Model(), Model()), made)


def _memory_in_c() -> Any:
    from diana.stores.memory.c_store import CMemoryStore

    return CMemoryStore()


def _zone(kind: str, stack: ExitStack) -> SharedStore:
    store = SharedStore(stack.enter_context(zone_name()), ZONE_SIZE, kind=kind)
    stack.callback(store.close)
    return store
