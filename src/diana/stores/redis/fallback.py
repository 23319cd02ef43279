"""Counting here while the store is lost, and settling afterwards.

Each rule does what its `when_down` says. `local` counts as `divided` does: this node alone, with its share of the limit among the nodes
that were last known to live. What was admitted so is noted, and charged to the store once when it is back: at most what the counter here
still holds, because what has leaked out or left its window would be forgotten there too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from diana.core.charge import Charges
from diana.core.decision import Decision
from diana.core.division import divided
from diana.core.meter import Meter
from diana.stores.clock import wall_us
from diana.stores.lock import fork_safe_lock
from diana.stores.memory import MemoryStore

MOST_KEYS = 100_000
"""Keys counted and noted here; more than a fleet's outage can settle within a second or two is not worth knowing."""
RETRY_US = 1_000_000
"""What a rule that is closed tells who comes: by then the store may be back."""


Ask = Callable[[Charges, int | None], list[Decision]]


class Debt(NamedTuple):
    """What was admitted here to one counter."""

    meter: Meter
    key: str
    admitted: int


class Fallback:
    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        """How many share a limit now."""
        self._store = MemoryStore(2 * MOST_KEYS)
        self._lock = fork_safe_lock()
        self._debts: dict[bytes, Debt] = {}
        self._shares: dict[tuple[Meter, int], Meter] = {}
        self._now: int | None = None
        """The time that was last given, by those who bring their own clock."""

    def decide(self, charges: Charges, keys: list[bytes], now: int | None) -> list[Decision]:
        """Without the store; every decision is marked as degraded."""
        self._now = now
        here = [place for place, charge in enumerate(charges) if charge[0].when_down == "local"]
        closed = any(charge[0].when_down == "closed" for charge in charges)
        ask = self._store.peek if closed else self._store.decide
        decisions = self._answers(charges, here, now, ask)
        if not closed and all(decisions[place] for place in here):
            self._note(charges, keys, here)
        return decisions

    def peek(self, charges: Charges, now: int | None) -> list[Decision]:
        here = [place for place, charge in enumerate(charges) if charge[0].when_down == "local"]
        return self._answers(charges, here, now, self._store.peek)

    def _answers(
        self, charges: Charges, here: list[int], now: int | None, ask: Ask
    ) -> list[Decision]:
        """Of the counters that are counted here, and of those that are open or closed."""
        at = wall_us() if now is None else now
        some = ask([self._share(charges[place]) for place in here], now)
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

    def refund(self, charge: tuple[Meter, str, int], key: bytes, at: int, now: int | None) -> bool:
        """Whether it was charged here and not yet settled; then it comes back here."""
        with self._lock:
            debt = self._debts.get(key)
            if debt is None or debt.admitted <= 0:
                return False
            self._debts[key] = debt._replace(admitted=max(0, debt.admitted - charge[2]))
        self._store.refund([self._share(charge)], at, now)
        return True

    def reset(self, meter: Meter, key: str, wire_key: bytes) -> None:
        with self._lock:
            self._debts.pop(wire_key, None)
        self._store.reset(self._share((meter, key, 1))[0], key)

    def settled(self, belongs: Callable[[bytes], bool]) -> dict[bytes, Debt]:
        """What is to be charged to the store now. It is forgotten here: nobody charges it twice."""
        with self._lock:
            taken = {key: debt for key, debt in self._debts.items() if belongs(key)}
            for key in taken:
                del self._debts[key]
        owed = {}
        for wire_key, debt in taken.items():
            share = self._share((debt.meter, debt.key, 0))
            (left,) = self._store.peek([share], self._now)
            held = share[0].params.limit - left.remaining
            if amount := min(debt.admitted, held):
                owed[wire_key] = debt._replace(admitted=amount)
        return owed

    def owe(self, debts: Mapping[bytes, Debt]) -> None:
        """Still: somebody took them to be settled, and did not come to it."""
        with self._lock:
            for key, debt in debts.items():
                since = self._debts.get(key)
                more = since.admitted if since is not None else 0
                self._debts[key] = debt._replace(admitted=debt.admitted + more)

    def forget_debts(self) -> None:
        """In a forked child: they are the parent's to settle."""
        self._debts = {}

    def owes(self) -> bool:
        return bool(self._debts)

    def _note(self, charges: Charges, keys: list[bytes], here: list[int]) -> None:
        with self._lock:
            for place in here:
                meter, key, cost = charges[place]
                debt = self._debts.get(keys[place])
                if debt is not None:
                    self._debts[keys[place]] = Debt(meter, key, debt.admitted + cost)
                elif len(self._debts) < MOST_KEYS:
                    self._debts[keys[place]] = Debt(meter, key, cost)

    def _share(self, charge: tuple[Meter, str, int]) -> tuple[Meter, str, int]:
        meter, key, cost = charge
        known = self._shares.get((meter, self.nodes))
        if known is None:
            if len(self._shares) > 10_000:
                self._shares.clear()
            known = self._shares[meter, self.nodes] = divided(meter, self.nodes)
        return known, key, cost
