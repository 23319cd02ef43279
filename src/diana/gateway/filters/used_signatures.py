"""Signatures that were used and must not pass again, each for as long as its time would still be accepted.

One process remembers them in a set. The workers of a gateway remember them together, in a file in shared memory: a table of slots of 24
bytes, 16 of the signature and 8 for the end of its time. A signature has 64 slots where it may stand, chosen by its bytes; it takes the
first one that is unused or expired. Nothing is evicted: if there is no such slot, the table is full, and the request is refused.

    its slots   1st        2nd          3rd
               ┌──────────┬────────────┬────────┐
               │ expired  │ other, end │ unused │     takes the 1st; searched up to the 3rd, behind which it cannot stand
               └──────────┴────────────┴────────┘

A process that is killed while it writes leaves a slot that is still unused or expired, since the end is written last.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from heapq import heappop, heappush
from mmap import mmap
from struct import Struct
from typing import Protocol

from diana.stores.zone.zone_file import open_zone_file
from diana.stores.zone.zone_header import BODY

CAPACITY = 1_000_000
REACH = 64
ROOM = 1.25
"""At least so many slots for each signature of the capacity: then not one in a million finds all of its slots taken."""
DIGEST_BYTES = 16

_SLOT = Struct("16sq")
_END = Struct("q")


class Replay(Enum):
    """What the memory finds of a signature."""

    NEW = 0
    REPEATED = 1
    NO_ROOM = 2


class ReplayMemory(Protocol):
    def add(self, signature: bytes, end_us: int, now_us: int) -> Replay:
        """Remember the signature until `end_us`."""


class ProcessReplays:
    """Of one process."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._known: set[bytes] = set()
        self._ends: list[tuple[int, bytes]] = []

    def add(self, signature: bytes, end_us: int, now_us: int) -> Replay:
        while self._ends and self._ends[0][0] < now_us:
            self._known.discard(heappop(self._ends)[1])
        if signature in self._known:
            return Replay.REPEATED
        if len(self._known) >= self._capacity:
            return Replay.NO_ROOM
        self._known.add(signature)
        heappush(self._ends, (end_us, signature))
        return Replay.NEW


class ZoneReplays:
    """Of all processes of a machine that open it by this name."""

    def __init__(self, name: str, capacity: int = CAPACITY) -> None:
        # A power of two, so that with an odd stride all of a signature's slots are different ones.
        slots = 1 << (int(capacity * ROOM) - 1).bit_length()
        self._file = open_zone_file(name, "replays", BODY + slots * _SLOT.size, _lay_out)
        self._slots = (self._file.header.size - BODY) // _SLOT.size
        from fcntl import LOCK_EX, LOCK_UN, lockf  # not on Windows, which has no zones

        self._lock = partial(lockf, self._file.descriptor, LOCK_EX, 1)
        self._unlock = partial(lockf, self._file.descriptor, LOCK_UN, 1)

    def add(self, signature: bytes, end_us: int, now_us: int) -> Replay:
        file = self._file
        with file.lock:
            self._lock()
            try:
                return self._add(file.mapping, signature[:DIGEST_BYTES], end_us, now_us)
            finally:
                self._unlock()

    def _add(self, table: mmap, digest: bytes, end_us: int, now_us: int) -> Replay:
        # The signature is an HMAC, so no client chooses where it stands.
        first, stride = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
        stride |= 1
        free = None
        for step in range(REACH):
            offset = BODY + (first + step * stride) % self._slots * _SLOT.size
            known, end = _SLOT.unpack_from(table, offset)
            if end < now_us:
                free = offset if free is None else free
                if not end:
                    break
            elif known == digest:
                return Replay.REPEATED
        if free is None:
            return Replay.NO_ROOM
        table[free : free + DIGEST_BYTES] = digest
        _END.pack_into(table, free + DIGEST_BYTES, end_us)
        return Replay.NEW


def _lay_out(mapping: mmap) -> None:
    """All zeros is an empty table."""
