from __future__ import annotations

from diana.stores.agenda import NO_TIME, SLOT_BITS, Agenda

SLOT = 1 << SLOT_BITS


def test_the_earliest_slot_comes_first_and_within_it_who_waited_longest() -> None:
    agenda: Agenda[str, str] = Agenda(["one", "other"])
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
    agenda: Agenda[str, str] = Agenda(["one"])
    assert agenda.due == NO_TIME
    agenda.put(3 * SLOT + 7, 0, "k")
    assert agenda.due == 4 * SLOT
    agenda.put(SLOT, 0, "k2")
    assert agenda.due == 2 * SLOT
    agenda.pop()
    assert agenda.due == 4 * SLOT
    agenda.pop()
    assert agenda.due == NO_TIME
