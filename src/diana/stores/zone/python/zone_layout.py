"""Where everything stands in a zone of the Python kind. All of it follows from the size; a new zone is all zeros.

    4096 ┌──────────────────┐
         │ undo count       │  lines that are being changed: see `zone_recovery`; whether a process waits for the lock
         ├──────────────────┤
         │ control          │  keys, slots in use, free list, hand of the sweep, evictions, generation
         ├──────────────────┤
         │ limits           │  for each how many slots it uses, and its id
         ├──────────────────┤
         │ undo             │  where, and what stood there before
         ├──────────────────┤
         │ owners           │  one byte per slot: free, which limit's and whether blocked, or a further slot of a state
         ├──────────────────┤
         │ heads            │  of the chains of slots, by the hash of the key
         ├──────────────────┤
         │ slots            │  128 bytes each: see `entry_table`
         └──────────────────┘

Everything lies in lines of 128 bytes, so that a change can be undone line by line.
"""

from __future__ import annotations

from mmap import mmap

from diana.stores.zone.zone_header import BODY

LINE = 128
MOST_LIMITS = 127
"""Limits whose slots are counted apart; the last stands for all further ones."""
LONGEST_ID = 236
LIMIT_BYTES = 256
UNDO_LINES = 4096
"""More than the longest log and all that points to it."""

FREE = 0
"""As the owner of a slot."""
FURTHER = 255
"""A slot that holds the rest of another one's state."""

# The numbers of the control line.
KEYS, USED, FREE_LIST, FRESH, HAND, EVICTIONS, GENERATION, LIMITS = range(8)


class Layout:
    """The mapping, the places in it, and views of it as numbers."""

    def __init__(self, mapping: mmap) -> None:
        self.mapping = mapping
        view = memoryview(mapping)
        usable = len(mapping) // LINE * LINE
        self.longs = view[:usable].cast("q")
        self.words = view[:usable].cast("I")
        self.undo_count = BODY // 8
        self.waiting = self.undo_count + 1
        """Not 0: a process waits for the lock."""
        self.control = (BODY + LINE) // 8
        self.limit_slots = (BODY + 2 * LINE) // 8
        """How many slots each limit uses, as longs."""
        self.limit_ids = BODY + 10 * LINE
        self.undo_places = (self.limit_ids + MOST_LIMITS * LIMIT_BYTES + LIMIT_BYTES) // 8
        self.undo_lines = self.undo_places * 8 + UNDO_LINES * 8
        self.owners = self.undo_lines + UNDO_LINES * LINE
        rest = len(mapping) - self.owners
        heads = 1
        while heads * (LINE + 1 + 4) <= rest:
            heads *= 2
        self.heads_mask = heads - 1
        self.slots = (rest - heads * 4 - 2 * LINE) // (LINE + 1)
        """How many; they are numbered from 1."""
        self.heads = (self.owners + self.slots + LINE) // LINE * LINE // 4
        """As words."""
        self.first_slot = self.heads * 4 + heads * 4 - LINE
        """Slot n begins at first_slot + n * LINE."""
