"""Stores that count in C, each empty: in private memory, and in a zone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from diana.core.contracts import Store
from diana.stores.memory.c_store import CMemoryStore
from diana.stores.zone.store import SharedStore
from tests.stores.shared.zones import zone_name

BEGIN_US = 1_700_000_000_000_000
SECOND_US = 1_000_000


@contextmanager
def memory() -> Iterator[Store]:
    yield CMemoryStore()


@contextmanager
def zone() -> Iterator[Store]:
    with zone_name() as name:
        yield SharedStore(name, 4 << 20)


KINDS: dict[str, Callable[[], object]] = {"memory": memory, "zone": zone}
