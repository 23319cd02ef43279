"""Whether a zone of the Python kind is in order: every slot is free, a key's, or a further slot of exactly one key."""

from __future__ import annotations

from collections import Counter

from diana.stores.zone.python.entry_table import (
    FURTHER_SLOT,
    LENGTH,
    LOG,
    NEXT,
    NUMBERS,
)
from diana.stores.zone.python.log_entries import TOPS
from diana.stores.zone.python.python_zone import PythonZone
from diana.stores.zone.python.zone_layout import (
    FREE,
    FREE_LIST,
    FRESH,
    FURTHER,
    KEYS,
    LINE,
    MOST_LIMITS,
    USED,
)


def check_soundness(zone: PythonZone) -> None:
    zone.limits()  # takes the lock, so what was begun is put back
    layout, table = zone._layout, zone._table
    control = table.control
    assert layout.longs[layout.undo_count] == 0
    chained: list[int] = []
    heads = layout.words[layout.heads : layout.heads + layout.heads_mask + 1].tolist()
    for head, first in enumerate(heads):
        slot = first
        while slot:
            chained.append(slot)
            place = table.offset(slot)
            digest = layout.mapping[place : place + 8]
            assert int.from_bytes(digest, "little") & layout.heads_mask == head
            slot = layout.words[(place + NEXT) >> 2]
    owners = layout.mapping[layout.owners + 1 : layout.owners + layout.slots + 1]
    keys = [slot for slot, owner in enumerate(owners, 1) if owner not in (FREE, FURTHER)]
    assert sorted(chained) == keys
    assert control[KEYS] == len(keys)
    further: list[int] = []
    in_use: Counter[int] = Counter()
    for slot in keys:
        own = _further_slots(zone, slot)
        further += own
        in_use[(owners[slot - 1] - 1) >> 1] += 1 + len(own)
    assert sorted(further) == [slot for slot, owner in enumerate(owners, 1) if owner == FURTHER]
    free: list[int] = []
    slot = control[FREE_LIST]
    while slot:
        free.append(slot)
        slot = layout.words[(table.offset(slot) + NEXT) >> 2]
    free += range(control[FRESH] + 1, layout.slots + 1)
    assert sorted(free) == [slot for slot, owner in enumerate(owners, 1) if owner == FREE]
    assert control[USED] == len(keys) + len(further)
    counted = layout.longs[layout.limit_slots : layout.limit_slots + MOST_LIMITS].tolist()
    assert counted == [in_use[limit] for limit in range(MOST_LIMITS)]


def _further_slots(zone: PythonZone, slot: int) -> list[int]:
    layout, table = zone._layout, zone._table
    place = table.offset(slot)
    if layout.words[(place + LENGTH) >> 2] != LOG:
        found = []
        more = layout.words[(place + FURTHER_SLOT) >> 2]
        while more:
            found.append(more)
            more = layout.words[table.offset(more) >> 2]
        return found
    at = ((place + NUMBERS) >> 2) + 2 * TOPS
    tops = [top for top in layout.words[at : at + 2] if top]
    directories = [each for top in tops for each in _pointed_to(zone, top)]
    return tops + directories + [leaf for each in directories for leaf in _pointed_to(zone, each)]


def _pointed_to(zone: PythonZone, slot: int) -> list[int]:
    at = zone._table.offset(slot) >> 2
    return [each for each in zone._layout.words[at : at + LINE // 4] if each]
