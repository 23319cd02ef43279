"""What was admitted here while the store was lost, charged to it once: as much of it as still fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

from diana.core.contracts import State
from diana.stores.redis.fallback import Debt
from diana.stores.redis.protocol.commands import ServerClock, Talk, acquire
from diana.stores.redis.protocol.compare_and_swap import Change, swap
from diana.stores.redis.protocol.script import wire_limit

TOGETHER = 128


def settle(
    clock: ServerClock,
    debts: list[tuple[bytes, Debt]],
    slot_of: Callable[[bytes], int],
    seconds: float,
) -> Iterator[tuple[Talk, list[tuple[bytes, Debt]]]]:
    """Talks to be held one after the other, each within so many seconds, and what each charges. One that fails is not repeated."""
    by_slot = sorted(debts, key=lambda debt: slot_of(debt[0]))
    in_lua = [(key, debt) for key, debt in by_slot if wire_limit(debt.meter) is not None]
    for some in _batches(in_lua, slot_of):
        argv: list[Any] = []
        for _, debt in some:
            argv += ["fill", 1, wire_limit(debt.meter), debt.admitted]
        yield acquire(clock, [key for key, _ in some], argv, None, monotonic() + seconds), some
    for key, debt in by_slot:
        if wire_limit(debt.meter) is None:
            talk = swap(clock, [key], [debt.meter], _fill(debt), None, monotonic() + seconds)
            yield talk, [(key, debt)]


def _batches(
    debts: list[tuple[bytes, Debt]], slot_of: Callable[[bytes], int]
) -> Iterator[list[tuple[bytes, Debt]]]:
    """Of one slot each: in a cluster a script may not reach further."""
    batch: list[tuple[bytes, Debt]] = []
    for key, debt in debts:
        if batch and (len(batch) == TOGETHER or slot_of(batch[0][0]) != slot_of(key)):
            yield batch
            batch = []
        batch.append((key, debt))
    if batch:
        yield batch


def _fill(debt: Debt) -> Change:
    meter = debt.meter

    def change(states: list[State | None], now: int) -> tuple[Any, list[State | None]]:
        (state,) = states
        room = meter.decide(state, meter.params, 0, now)[1][1]
        amount = min(room, debt.admitted)
        return amount, [meter.decide(state, meter.params, amount, now)[0] if amount else None]

    return change
