"""Counting here while the store is lost, and charging it to the store afterwards.

Each rule does what its `when_down` says. `local` counts as `divided` does: this node alone, with its share of the limit among the nodes
that were last known to live, starting from what the store said last: a key that had used up nine tenths of its limit has used up nine
tenths of its share. What was admitted so is noted, and charged to the store once when it is back: at most what the counter here still
holds, because what has leaked out or left its window would be forgotten there too. What may have been counted there (it was sent, and
no reply came) is not noted; and given back it is only here, as is what the store has not said that it was charged.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

from diana.core.charge import Charges
from diana.core.contracts import State, Store
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.limit import uses_slots
from diana.core.node_share import Shares
from diana.redis_client.time_budget import Budget
from diana.runtime.clock import wall_us
from diana.runtime.fork import fork_safe_lock
from diana.stores.adapters import renewed
from diana.stores.memory import MemoryStore
from diana.stores.redis.protocol.batch import MOST_COUNTERS
from diana.stores.redis.protocol.commands import Exchange, acquire
from diana.stores.redis.protocol.compare_and_swap import StateChange, swap
from diana.stores.redis.protocol.scripts import wire_limit
from diana.stores.redis.protocol.server_clock import ServerClock

MOST_KEYS = 100_000
"""Keys whose admissions are noted; of further ones nothing is charged to the store."""
MOST_KNOWN = 50_000
"""Keys of which it is known what the store said last: at least so many, at most twice as many."""
MOST_UNKNOWN = 100_000
"""Admissions that the store may have counted too, of which it is remembered that they were; the oldest are forgotten first."""
SETTLED_AT_ONCE = 400
"""Keys charged to the store in one step, in script calls as small as any other."""
RETRY_US = 1_000_000
"""What a rule that is closed tells a client: by then the store may be back."""

DecideHere = Callable[[Charges, int | None], list[Decision]]


class PendingCharge(NamedTuple):
    """What was admitted here to one counter."""

    meter: CounterSpec
    key: str
    admitted: int


LastKnownUsage = tuple[int, int]
"""What the store said last of a counter: what was used, and when, by the clock here or the one given."""


class Fallback:
    def __init__(
        self,
        shares: Shares,
        local: Store | None = None,
        when_settled: Callable[[bytes], object] = lambda _: None,
    ) -> None:
        """`local`: where this node's processes count together, if they do. Each of them settles what it has admitted itself.
        `when_settled` is called with the key of a counter that the store was charged on."""
        self._shares = shares
        """What this node gets of a limit now."""
        self._store: Store = MemoryStore(2 * MOST_KEYS) if local is None else local
        self._when_settled = when_settled
        self._lock = fork_safe_lock()
        self._debts: dict[bytes, PendingCharge] = {}
        self._settled: dict[bytes, int] = {}
        """What the store said it was charged since: a refund of it is the store's to give back."""
        self._unknown: dict[tuple[bytes, int], int] = {}
        """By key and moment: what was admitted here that the store may have counted. It is no part of what is owed or was settled."""
        self._known: dict[bytes, LastKnownUsage] = {}
        self._known_before: dict[bytes, LastKnownUsage] = {}
        self._now: int | None = None
        """The time that was last given, by those who bring their own clock."""

    def learn(self, key: bytes, used: int, at: int) -> None:
        """What the store said of a counter, should it be lost. Not what remained: to another tier that is another number."""
        known = self._known
        if len(known) >= MOST_KNOWN:
            self._known_before, self._known = known, {}
            known = self._known
        known[key] = (used, at)

    def decide(
        self, charges: Charges, keys: list[bytes], now: int | None, note: bool = True
    ) -> list[Decision]:
        """Without the store; every decision is marked as degraded. `note`: it is certain that the store has not counted it."""
        self._now = now
        here = [place for place, charge in enumerate(charges) if charge[0].when_down == "local"]
        closed = any(charge[0].when_down == "closed" for charge in charges)
        self._start_from_known(charges, keys, here, now)
        decisions = self._answers(
            charges, here, now, self._store.peek if closed else self._store.decide
        )
        if not closed and all(decisions[place] for place in here):
            if note:
                self._note(charges, keys, here)
            else:
                self._note_unknown(charges, keys, here, decisions)
        return decisions

    def peek(self, charges: Charges, now: int | None) -> list[Decision]:
        here = [place for place, charge in enumerate(charges) if charge[0].when_down == "local"]
        return self._answers(charges, here, now, self._store.peek)

    def refund(
        self, charge: tuple[CounterSpec, str, int], key: bytes, at: int, now: int | None
    ) -> int:
        """Take back what was charged here; gives how much of it was settled since, and is the store's to give back."""
        meter, _, cost = charge
        if meter.when_down != "local":
            return 0  # let pass without a charge
        with self._lock:
            owed = cost - self._take_unknown(key, at, cost)
            debt = self._debts.get(key)
            here = min(owed, debt.admitted) if debt is not None else 0
            if debt is not None and here:
                self._debts[key] = debt._replace(admitted=debt.admitted - here)
            settled = self._settled.get(key, 0)
            there = min(owed - here, settled)
            if there:
                self._settled[key] = settled - there
        self._store.refund([self._share(charge)], at, now)
        return there

    def renew(self, charge: tuple[CounterSpec, str, int], at: int, now: int | None) -> int:
        """A place that was taken here."""
        if charge[0].when_down != "local":
            return at  # none was taken
        return renewed(self._store, self._share(charge), at, now)

    def reset(self, meter: CounterSpec, key: str, wire_key: bytes) -> None:
        with self._lock:
            self._debts.pop(wire_key, None)
            self._settled.pop(wire_key, None)
        self._known.pop(wire_key, None)
        self._known_before.pop(wire_key, None)
        self._store.reset(self._share((meter, key, 1))[0], key)

    def owes(self) -> bool:
        return bool(self._debts)

    def settle(
        self,
        clock: ServerClock,
        belongs: Callable[[bytes], bool],
        slot_of: Callable[[bytes], int],
        seconds: float,
    ) -> tuple[list[Exchange], int] | None:
        """One small step of charging the store: the exchanges, and how much they charge. None: nothing that belongs there is owed.

        It is forgotten here before it is sent, so that it is never charged twice; and it counts as charged when the store has said so.
        """
        some = self._take_debts(belongs)
        if not some:
            return None
        owed = [(key, debt) for key, debt in map(self._still_owed, some) if debt.admitted]
        by_slot: dict[int, list[tuple[bytes, PendingCharge]]] = {}
        for key, debt in owed:
            by_slot.setdefault(slot_of(key), []).append((key, debt))
        exchanges = [
            _charge(clock, group[first : first + MOST_COUNTERS], seconds, self._note_settled)
            for group in by_slot.values()
            for first in range(0, len(group), MOST_COUNTERS)
        ]
        return exchanges, sum(debt.admitted for _, debt in owed)

    def _take_debts(self, belongs: Callable[[bytes], bool]) -> list[tuple[bytes, PendingCharge]]:
        some: list[tuple[bytes, PendingCharge]] = []
        with self._lock:
            for key in list(islice(self._debts, 2 * SETTLED_AT_ONCE)):
                debt = self._debts.pop(key)
                if belongs(key) and len(some) < SETTLED_AT_ONCE:
                    some.append((key, debt))
                else:
                    self._debts[key] = (
                        debt  # behind the others: those of another server, or for the next step
                    )
        return some

    def _still_owed(self, owed: tuple[bytes, PendingCharge]) -> tuple[bytes, PendingCharge]:
        """As much as the counter here still holds."""
        wire_key, debt = owed
        share = self._share((debt.meter, debt.key, 0))
        (left,) = self._store.peek([share], self._now)
        held = share[0].params.limit - left.remaining
        return wire_key, debt._replace(admitted=min(debt.admitted, held))

    def _answers(
        self, charges: Charges, here: list[int], now: int | None, decide: DecideHere
    ) -> list[Decision]:
        """Of the counters that are counted here, and of those that are open or closed."""
        at = wall_us() if now is None else now
        some = decide([self._share(charges[place]) for place in here], now)
        decisions = {
            place: decision._replace(degraded=True)
            for place, decision in zip(here, some, strict=True)
        }
        for place, (meter, key, cost) in enumerate(charges):
            if place not in decisions:
                is_open = meter.when_down == "open"
                limit = meter.params.limit
                outcome = (True, limit, 0, 0, 0) if is_open else (False, 0, RETRY_US, RETRY_US, 0)
                decisions[place] = Decision(outcome, limit, key, cost, at, True)
        return [decisions[place] for place in range(len(charges))]

    def _start_from_known(
        self, charges: Charges, keys: list[bytes], here: list[int], now: int | None
    ) -> None:
        """A counter here holds at least this node's share of what the store last said was used."""
        at = wall_us() if now is None else now
        for place in here:
            known = self._known.pop(keys[place], None) or self._known_before.pop(keys[place], None)
            meter, key, _ = charges[place]
            if known is None or uses_slots(meter.algorithm):
                continue  # places that others hold would be given back there, never here
            share, _, _ = self._share((meter, key, 0))
            limit = share.params.limit
            used = min(limit, -(-known[0] * limit // meter.params.limit))
            if used <= 0:
                continue
            state = share.decide(None, share.params, used, known[1])[0]
            still_used = limit - share.decide(state, share.params, 0, at)[1][1]
            (left,) = self._store.peek([(share, key, 0)], now)
            more = still_used - (limit - left.remaining)
            if more > 0:
                self._store.decide([(share, key, more)], now)

    def _note(self, charges: Charges, keys: list[bytes], here: list[int]) -> None:
        with self._lock:
            for place in here:
                meter, key, cost = charges[place]
                if uses_slots(meter.algorithm):
                    continue  # charged there, nobody would give it back
                debt = self._debts.get(keys[place])
                if debt is not None:
                    self._debts[keys[place]] = PendingCharge(meter, key, debt.admitted + cost)
                elif len(self._debts) < MOST_KEYS:
                    self._debts[keys[place]] = PendingCharge(meter, key, cost)

    def _note_unknown(
        self, charges: Charges, keys: list[bytes], here: list[int], decisions: list[Decision]
    ) -> None:
        with self._lock:
            for place in here:
                meter, _, cost = charges[place]
                if uses_slots(meter.algorithm):
                    continue  # of these nothing is noted
                if len(self._unknown) >= MOST_UNKNOWN:
                    del self._unknown[next(iter(self._unknown))]
                admission = keys[place], decisions[place].at
                self._unknown[admission] = self._unknown.get(admission, 0) + cost

    def _take_unknown(self, key: bytes, at: int, cost: int) -> int:
        """How much of what was admitted then the store may have counted."""
        if not self._unknown:
            return 0
        found = self._unknown.pop((key, at), 0)
        if found > cost:
            self._unknown[key, at] = found - cost
        return min(found, cost)

    def _note_settled(self, key: bytes, charged: int) -> None:
        self._when_settled(key)
        if not charged:
            return
        with self._lock:
            if len(self._settled) >= MOST_KEYS:
                del self._settled[next(iter(self._settled))]
            self._settled[key] = self._settled.get(key, 0) + charged

    def _share(self, charge: tuple[CounterSpec, str, int]) -> tuple[CounterSpec, str, int]:
        meter, key, cost = charge
        return self._shares.of(meter), key, cost


def _charge(
    clock: ServerClock,
    owed: list[tuple[bytes, PendingCharge]],
    seconds: float,
    note_settled: Callable[[bytes, int], None],
) -> Exchange:
    """As much of each as still fits. Counters without a kernel in Lua go one by one."""
    waiting = Budget(seconds)
    argv: list[Any] = []
    in_lua: list[tuple[bytes, PendingCharge]] = []
    for key, debt in owed:
        limit = wire_limit(debt.meter)
        if limit is None:
            swapped = yield from swap(clock, [key], [debt.meter], _fill(debt), None, waiting)
            note_settled(key, swapped.result)
        else:
            in_lua.append((key, debt))
            argv += ["fill", 1, limit, debt.admitted]
    if not in_lua:
        return
    keys = [key for key, _ in in_lua]
    _, *answers = yield from acquire(clock, keys, argv, None, waiting, count=len(keys))
    for (key, debt), answer in zip(in_lua, answers, strict=True):
        # A counter that is full now may have taken less, and does not say how much.
        left = answer[2] if answer.__class__ is list and len(answer) > 2 else 0
        note_settled(key, debt.admitted if left.__class__ is int and left > 0 else 0)


def _fill(debt: PendingCharge) -> StateChange:
    meter = debt.meter

    def change(states: list[State | None], now: int) -> tuple[Any, list[State | None]]:
        (state,) = states
        room = meter.decide(state, meter.params, 0, now)[1][1]
        amount = min(room, debt.admitted)
        return amount, [meter.decide(state, meter.params, amount, now)[0] if amount else None]

    return change
