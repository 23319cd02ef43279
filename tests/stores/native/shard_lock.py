"""The lock of a zone's shard, taken as a process would hold it that stands still in the middle of a decision."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from diana.stores.zone.store import SharedStore
from diana.stores.zone.zone_header import BODY

FIRST = BODY + 4096
"""Where the first shard begins, and its lock stands at the very beginning of it."""
SOMEBODY_WAITS = 0x8000_0000
"""In the word that the kernel watches."""

_library = ctypes.CDLL(None)


class ShardLock:
    def __init__(self, store: SharedStore, shard: int = 0) -> None:
        place = FIRST
        if shard:  # else nobody has to count them, which takes their locks
            step = (store.file.header.size - FIRST) // store.counts()["shards"] & ~63
            place += shard * step
        self._word = ctypes.c_uint32.from_buffer(store.file.mapping, place)

    def somebody_waits(self) -> bool:
        return bool(self._word.value & SOMEBODY_WAITS)

    @contextmanager
    def held(self) -> Iterator[None]:
        """By this thread. Who forgets to give it back fails loudly: it is a lock that knows its holder."""
        assert _library.pthread_mutex_lock(ctypes.byref(self._word)) == 0
        try:
            yield
        finally:
            assert _library.pthread_mutex_unlock(ctypes.byref(self._word)) == 0
