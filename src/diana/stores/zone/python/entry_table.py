"""Slots, found by the hash of a key; and what happens when there are no more.

    ┌──────────┬──────┬────────┬────────┬───────┬────────────────┬─────────────────────────────────┐
    │ hash     │ next │ length │ further│ spare │ expires, in µs │ eleven numbers                  │
    └──────────┴──────┴────────┴────────┴───────┴────────────────┴─────────────────────────────────┘
    0          16     20       24       28      32               40                              128

A state of more numbers goes on in further slots, fifteen numbers each. A log is kept by `log_entries`.

A zone never grows. A key that is new passes by a few slots and frees those that are as good as never seen; if all slots are in use, one
goes: of the limit that uses most of them, first those that are not blocked, of these the one that expires soonest. Whether a key is
blocked is written with its owner, one byte per slot, so that the next one is found without looking into the slots.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from struct import Struct

from diana.stores.zone.python.zone_layout import (
    EVICTIONS,
    FREE,
    FREE_LIST,
    FRESH,
    FURTHER,
    GENERATION,
    HAND,
    KEYS,
    LIMIT_BYTES,
    LIMITS,
    LINE,
    LONGEST_ID,
    MOST_LIMITS,
    USED,
    Layout,
)
from diana.stores.zone.python.zone_recovery import Undo

NEXT, LENGTH, FURTHER_SLOT, EXPIRES, NUMBERS = 16, 20, 24, 32, 40
HERE = (LINE - NUMBERS) // 8
THERE = LINE // 8 - 1
"""Numbers in a slot of its own, and in a further one, which begins with where the next one is."""
MOST_NUMBERS = HERE + 70 * THERE
"""More than a sliding window of a thousand slices."""
LOG = 0xFFFF
"""As a length."""
LOOKS = 8
"""Slots among which the next one to go is chosen."""
STEPS = 3
"""Slots passed by for each new key: more than it takes, so that the sweep never falls behind."""
LONGEST_CHAIN = 10_000

IDLE, OPEN, BLOCKED = range(3)
"""A key that is as good as never seen; one that may pass; one that may not."""

PACK = [Struct(f"={1 + many}q").pack_into for many in range(HERE + 1)]
UNPACK = [Struct(f"={many}q").unpack_from for many in range(HERE + 1)]


class Damaged(Exception):
    """What is written in the zone cannot be."""


class TooSmall(Exception):
    """One decision needs more slots than there are."""


class EntryTable:
    def __init__(self, layout: Layout, undo: Undo) -> None:
        self._layout = layout
        self._undo = undo
        self.find = _find(layout)
        self.first_slot = layout.first_slot
        self.control = layout.longs[layout.control : layout.control + 8]
        self._limit_slots = layout.longs[layout.limit_slots : layout.limit_slots + MOST_LIMITS]

    def check(self) -> None:
        """Damaged, if the numbers of the control line cannot be true. Looked at before a key is added."""
        slots = self._layout.slots
        keys, used, free, fresh, hand, _, _, limits = self.control
        most = max(used, free, fresh, hand)
        if not (0 <= keys <= used <= fresh and min(free, hand) >= 0 and most <= slots):
            raise Damaged("its counts cannot be")
        if not 0 <= limits < MOST_LIMITS or min(self._limit_slots) < 0:
            raise Damaged("its limits cannot be")

    def offset(self, slot: int) -> int:
        if not 0 < slot <= self._layout.slots:
            raise Damaged(f"slot {slot}")
        return self.first_slot + slot * LINE

    def numbers(self, slot: int) -> tuple[int, ...]:
        """The state of a key's slot, unless it is a log."""
        layout, offset = self._layout, self.offset(slot)
        length = layout.words[(offset + LENGTH) >> 2]
        if length <= HERE:
            return UNPACK[length](layout.mapping, offset + NUMBERS)
        if length > MOST_NUMBERS:
            raise Damaged(f"{length} numbers")
        found = list(UNPACK[HERE](layout.mapping, offset + NUMBERS))
        for place in self._further(offset):
            found += layout.longs[(place >> 3) + 1 : (place >> 3) + 1 + THERE]
        if len(found) < length:
            raise Damaged("numbers are missing")
        return tuple(found[:length])

    def write_numbers(self, slot: int, numbers: tuple[int, ...], expires_us: int) -> None:
        """Of any length; one that is as long as before is written faster by the zone itself."""
        layout, offset = self._layout, self.offset(slot)
        self._undo.note(offset)
        length = len(numbers)
        if layout.words[(offset + LENGTH) >> 2] == LOG:
            self.drop_log(slot)
        places = list(self._further(offset))
        wanted = -(-max(0, length - HERE) // THERE)
        if len(places) != wanted:
            self._drop_further(slot)
            places = [self.offset(each) for each in self.allocate(slot, wanted)]
            link = (offset + FURTHER_SLOT) >> 2
            for place in places:
                self._undo.note(place)
                layout.words[link] = (place - self.first_slot) // LINE
                link = place >> 2
            if places:
                layout.words[link] = 0
        here = numbers[:HERE]
        PACK[len(here)](layout.mapping, offset + EXPIRES, expires_us, *here)
        layout.words[(offset + LENGTH) >> 2] = length
        for number, place in enumerate(places):
            self._undo.note(place)
            some = numbers[HERE + number * THERE : HERE + (number + 1) * THERE]
            for at, value in enumerate(some):
                layout.longs[(place >> 3) + 1 + at] = value

    def add(self, digest: bytes, limit: int) -> int:
        """A slot for a key that has none, under the number of its limit."""
        layout, undo = self._layout, self._undo
        undo.note(layout.control * 8)
        self._note_limit(limit)
        slot = self._free_slot()
        offset = self.offset(slot)
        undo.note(offset)
        undo.note(layout.owners + slot)
        head = layout.heads + self._head(digest[:8])
        undo.note(head * 4)
        layout.mapping[offset : offset + LINE] = digest + bytes(LINE - 16)
        layout.words[(offset + NEXT) >> 2] = layout.words[head]
        layout.words[head] = slot
        layout.mapping[layout.owners + slot] = 1 + 2 * limit
        self.control[KEYS] += 1
        self.control[USED] += 1
        self._limit_slots[limit] += 1
        return slot

    def allocate(self, slot: int, many: int) -> list[int]:
        """Further slots for what a key's slot cannot hold."""
        if not many:
            return []
        layout, undo = self._layout, self._undo
        undo.note(layout.control * 8)
        limit = self.limit_of(slot)
        self._note_limit(limit)
        found = []
        for _ in range(many):
            further = self._free_slot()
            undo.note(layout.owners + further)
            undo.note(self.offset(further))
            layout.mapping[layout.owners + further] = FURTHER
            self.control[USED] += 1
            self._limit_slots[limit] += 1
            found.append(further)
        return found

    def free(self, slot: int, limit: int) -> None:
        layout = self._layout
        offset = self.offset(slot)
        self._undo.note(layout.control * 8)
        self._undo.note(layout.owners + slot)
        self._undo.note(offset)
        self._note_limit(limit)
        layout.mapping[layout.owners + slot] = FREE
        layout.words[(offset + NEXT) >> 2] = self.control[FREE_LIST]
        self.control[FREE_LIST] = slot
        self.control[USED] -= 1
        self._limit_slots[limit] -= 1

    def forget(self, slot: int) -> None:
        """The key of a slot, and all that it uses."""
        layout, undo = self._layout, self._undo
        offset, limit = self.offset(slot), self.limit_of(slot)
        undo.note(layout.control * 8)
        place = layout.heads + self._head(layout.mapping[offset : offset + 8])
        for _ in range(LONGEST_CHAIN):
            if layout.words[place] == slot:
                break
            place = (self.offset(layout.words[place]) + NEXT) >> 2
        else:
            raise Damaged("a slot is in no chain")
        undo.note(place * 4)
        layout.words[place] = layout.words[(offset + NEXT) >> 2]
        if layout.words[(offset + LENGTH) >> 2] == LOG:
            self.drop_log(slot)
        else:
            self._drop_further(slot)
        self.free(slot, limit)
        self.control[KEYS] -= 1

    drop_log: Callable[[int], None]
    """Set by the keeper of logs: frees all that a log uses beside its slot."""
    standing: Callable[[int, int], int]
    """Set by the zone: whether the key of a slot is IDLE, OPEN or BLOCKED at a moment."""

    def sweep(self, now: int, kept: Collection[int]) -> None:
        """Pass by a few slots; forget what is as good as never seen."""
        layout, hand = self._layout, self.control[HAND]
        most = min(self.control[FRESH], layout.slots)
        owners = layout.mapping
        self._undo.note(layout.control * 8)
        for _ in range(min(STEPS, most)):
            hand = hand + 1 if hand < most else 1
            owner = owners[layout.owners + hand]
            if owner in (FREE, FURTHER) or hand in kept:
                continue
            standing = self.standing(hand, now)
            if standing == IDLE:
                self.forget(hand)
            elif standing == OPEN and not owner & 1:
                self._undo.note(layout.owners + hand)
                owners[layout.owners + hand] = owner - 1
        self.control[HAND] = hand
        self._undo.done()

    def limit_of(self, slot: int) -> int:
        owner = self._layout.mapping[self._layout.owners + slot]
        if owner in (FREE, FURTHER):
            raise Damaged(f"slot {slot} is no key's")
        return (owner - 1) >> 1

    def number_of_limit(self, id: str, digest: bytes) -> int:
        """Under which its slots are counted; those of one that has none any more are given to another."""
        layout, undo = self._layout, self._undo
        known = self.control[LIMITS]
        for number in range(min(known, MOST_LIMITS - 1)):
            place = layout.limit_ids + number * LIMIT_BYTES
            if layout.mapping[place : place + 16] == digest:
                return number
        undo.note(layout.control * 8)
        if known < MOST_LIMITS - 1:
            number = known
            self.control[LIMITS] = known + 1
        else:
            unused = [number for number in range(known) if not self._limit_slots[number]]
            if not unused:
                return MOST_LIMITS - 1
            number = unused[0]
            self.control[GENERATION] += 1
        spelled = id.encode("utf-8", "replace")[:LONGEST_ID]
        place = layout.limit_ids + number * LIMIT_BYTES
        undo.note(place)
        undo.note(place + LINE)
        entry = digest + len(spelled).to_bytes(2, "little") + spelled
        layout.mapping[place : place + len(entry)] = entry
        return number

    def limits(self) -> Iterator[tuple[str, int]]:
        """(id, slots) of each that has any."""
        layout = self._layout
        for number in range(min(self.control[LIMITS], MOST_LIMITS - 1)):
            place = layout.limit_ids + number * LIMIT_BYTES
            length = int.from_bytes(layout.mapping[place + 16 : place + 18], "little")
            spelled = layout.mapping[place + 18 : place + 18 + min(length, LONGEST_ID)]
            if self._limit_slots[number]:
                yield spelled.decode("utf-8", "replace"), self._limit_slots[number]
        if self._limit_slots[MOST_LIMITS - 1]:
            yield "all others", self._limit_slots[MOST_LIMITS - 1]

    def _head(self, begin: bytes) -> int:
        return int.from_bytes(begin, "little") & self._layout.heads_mask

    def _note_limit(self, limit: int) -> None:
        self._undo.note((self._layout.limit_slots + limit) * 8)

    def _further(self, offset: int) -> Iterator[int]:
        words = self._layout.words
        slot = words[(offset + FURTHER_SLOT) >> 2]
        if words[(offset + LENGTH) >> 2] == LOG:
            return
        for _ in range(MOST_NUMBERS):
            if not slot:
                return
            place = self.offset(slot)
            yield place
            slot = words[place >> 2]
        raise Damaged("further slots without end")

    def _drop_further(self, slot: int) -> None:
        offset, limit = self.offset(slot), self.limit_of(slot)
        for place in list(self._further(offset)):
            self.free((place - self.first_slot) // LINE, limit)
        self._undo.note(offset)
        self._layout.words[(offset + FURTHER_SLOT) >> 2] = 0

    def reserve(self, many: int, now: int, kept: Collection[int]) -> None:
        """Room for so many slots, before anything is changed: each key that has to go goes by itself, as a change of its own."""
        while self._layout.slots - self.control[USED] < many:
            self.forget(self._next_to_go(now, kept))
            self.control[EVICTIONS] += 1
            self._undo.done()

    def _free_slot(self) -> int:
        control = self.control
        if control[FREE_LIST]:
            slot = control[FREE_LIST]
            control[FREE_LIST] = self._layout.words[(self.offset(slot) + NEXT) >> 2]
            return slot
        control[FRESH] += 1
        return control[FRESH]

    def _next_to_go(self, now: int, kept: Collection[int]) -> int:
        in_use = self._limit_slots.tolist()
        while most := max(in_use):
            limit = in_use.index(most)
            some = self._some_of(1 + 2 * limit, kept)
            if some:
                return min(some, key=self._expires)
            some = self._some_of(1 + 2 * limit + 1, kept)
            if some:
                return min(some, key=lambda slot: (self.standing(slot, now), self._expires(slot)))
            in_use[limit] = 0
        raise TooSmall

    def _some_of(self, owner: int, kept: Collection[int]) -> list[int]:
        """A few slots of this owner, from the hand on."""
        layout, wanted = self._layout, bytes([owner])
        owners, hand = layout.owners, self.control[HAND]
        found: list[int] = []
        for first, last in ((hand + 1, layout.slots), (1, hand)):
            place = owners + first
            while len(found) < LOOKS:
                place = layout.mapping.find(wanted, place, owners + last + 1)
                if place < 0:
                    break
                if place - owners not in kept:
                    found.append(place - owners)
                place += 1
        return found

    def _expires(self, slot: int) -> int:
        return self._layout.longs[(self.offset(slot) + EXPIRES) >> 3]


def _find(layout: Layout) -> Callable[[bytes], int]:
    """Where the slot of a key begins; 0 if it has none. A closure: it is called on every decision."""
    mapping, words, slots = layout.mapping, layout.words, layout.slots
    heads, mask, first_slot = layout.heads, layout.heads_mask, layout.first_slot
    from_bytes = int.from_bytes

    def find(digest: bytes) -> int:
        slot = words[heads + (from_bytes(digest[:8], "little") & mask)]
        steps = 0
        while slot:
            if slot > slots or steps > LONGEST_CHAIN:
                raise Damaged("a chain leads nowhere")
            offset = first_slot + slot * LINE
            if mapping[offset : offset + 16] == digest:
                return offset
            slot = words[(offset + NEXT) >> 2]
            steps += 1
        return 0

    return find
