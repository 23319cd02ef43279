from __future__ import annotations

from diana.stores.memory.eviction import NO_TIME, SLOT_BITS, ExpiryQueue

SLOT = 1 << SLOT_BITS


def test_the_earliest_slot_comes_first_and_within_it_who_waited_longest() -> None:
    agenda: ExpiryQueue[str, str] = ExpiryQueue(["one", "other"])
    for when, owner, key in (
        (5 * SLOT, 0, "late"),
        (SLOT, 1, "a"),
        (SLOT + 1, 1, "b"),
        (0, 0, "now"),
    ):
        agenda.put(when, owner, key)
    popped = []
    while agenda:
        slot, whose, key = agenda.pop()
        popped.append((slot.number, whose, key))
    assert popped == [(0, "one", "now"), (1, "other", "a"), (1, "other", "b"), (5, "one", "late")]


def test_due_is_when_the_earliest_slot_is_past() -> None:
    agenda: ExpiryQueue[str, str] = ExpiryQueue(["one"])
    assert agenda.due == NO_TIME
    agenda.put(3 * SLOT + 7, 0, "k")
    assert agenda.due == 4 * SLOT
    agenda.put(SLOT, 0, "k2")
    assert agenda.due == 2 * SLOT
    agenda.pop()
    assert agenda.due == 4 * SLOT
    agenda.pop()
    assert agenda.due == NO_TIME


def test_what_comes_first_of_one_owner() -> None:
    agenda: ExpiryQueue[str, str] = ExpiryQueue(["one", "other"])
    for when, owner, key in ((0, 0, "a"), (2 * SLOT, 1, "b"), (SLOT, 1, "c"), (3 * SLOT, 0, "d")):
        agenda.put(when, owner, key)
    assert agenda.pop_of(1) == ((1, 1), "other", "c")
    assert agenda.pop_of(1) == ((2, 1), "other", "b")
    assert not agenda.holds(1)
    agenda.put(SLOT, 1, "again")
    assert agenda.holds(1)
    assert agenda.pop_of(0) == ((0, 0), "one", "a")
    assert agenda.due == 2 * SLOT
    assert [agenda.pop()[2] for _ in range(2)] == ["again", "d"]
    assert not agenda
    assert agenda.due == NO_TIME


def test_slots_emptied_again_and_again_take_no_room() -> None:
    agenda: ExpiryQueue[str, str] = ExpiryQueue(["one"])
    agenda.put(0, 0, "first")
    for _ in range(1_000):
        agenda.put(5 * SLOT, 0, "k")
        agenda.put(0, 0, "k")
        agenda.pop_of(0)
        agenda.pop_of(0)
        agenda.pop_of(0)
        agenda.put(0, 0, "first")
    assert len(agenda._order) <= 2
