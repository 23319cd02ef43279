"""What comes back after a verdict: refunds, charges that the answer's status does not charge, places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from diana.core.charge import charged_at
from diana.core.contracts import Clock, Store
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.limit import uses_slots
from diana.core.rule import Rule
from diana.core.verdict import Verdict
from diana.engine.charge_builder import Charge
from diana.engine.rule_stores import RuleStores
from diana.slots.acquired_slots import AcquiredSlots
from diana.slots.slot import HeldSlot, SlotStore, place_name
from diana.slots.slot_renewer import keeper_of_process
from diana.slots.wait_queue import WaitQueues
from diana.stores import arefund_of, asynchronous, refund_of


class StoreRefund(NamedTuple):
    """One charge to take back from one store: a refund, a charge that the response's status does not charge, or a slot."""

    store: Store
    charge: Charge
    at: int
    now: int | None
    degraded: bool
    """The store decided it without its server."""

    def perform(self) -> None:
        refund_of(self.store, degraded=self.degraded)([self.charge], self.at, self.now)

    async def aperform(self) -> None:
        refund = arefund_of(asynchronous(self.store), degraded=self.degraded)
        await refund([self.charge], self.at, self.now)


class RefundPlanner:
    def __init__(self, stores: RuleStores, clock: Clock | None, lines: WaitQueues) -> None:
        self._stores = stores
        self._clock = clock
        self._lines = lines
        self._accounts = {
            id(store): SlotStore(store, clock, lines) for store in (stores.local, stores.shared)
        }

    @property
    def accounts(self) -> tuple[SlotStore, ...]:
        """Of the places in each store."""
        return tuple(self._accounts.values())

    def refunds(self, verdict: Verdict) -> Iterator[StoreRefund]:
        """What takes back what an allowed request was charged."""
        if verdict.allowed:
            yield from self._refunds(verdict, verdict.rules)

    def settlements(self, verdict: Verdict, status: int) -> Iterator[StoreRefund]:
        """What takes back the charges of rules that do not charge answers of this status."""
        if verdict.allowed and verdict.match.by_outcome:
            not_charged = [
                rule
                for rule in verdict.rules
                if rule.charge_on is not None and status not in rule.charge_on.numbers
            ]
            yield from self._refunds(verdict, not_charged)

    def releases(self, verdict: Verdict) -> Iterator[StoreRefund]:
        """What gives back the places of an allowed request."""
        if verdict.allowed and verdict.match.holds:
            places = [rule for rule in verdict.rules if uses_slots(rule.meter.algorithm)]
            yield from self._refunds(verdict, places)

    def keep_slots(self, verdict: Verdict) -> AcquiredSlots:
        """The places that an allowed request took, to be renewed and given back."""
        return AcquiredSlots(list(self._places_of(verdict)) if verdict.allowed else [])

    def use_edited(self, meters: Mapping[str, CounterSpec]) -> None:
        """The rules were edited: slots that are held are renewed under these meters from now on."""
        if meters:
            keeper_of_process().use_edited(self.accounts, meters)

    def wake(self, verdict: Verdict) -> None:
        """Places were given back: who waits for one looks again."""
        if self._lines.are_used:
            for place in self._places_of(verdict):
                self._lines.wake(place_name(place.charge))

    def release_all(
        self, store: Store, charges: Sequence[Charge], decisions: Sequence[Decision]
    ) -> None:
        """Of a request that was cancelled while a store elsewhere decided: as soon as it is known that it got places."""
        if decisions and all(decisions):
            self.release(store, charges, decisions)

    def release(
        self, store: Store, charges: Sequence[Charge], decisions: Sequence[Decision]
    ) -> None:
        """The places that these charges took, if any did."""
        account = self._accounts.get(id(store))
        if account is not None:
            AcquiredSlots(
                [
                    HeldSlot(account, charge, charged_at(charge[0], decision), decision.degraded)
                    for charge, decision in zip(charges, decisions, strict=True)
                    if decision and uses_slots(charge[0].algorithm)
                ]
            ).release()

    def _refunds(self, verdict: Verdict, rules: Sequence[Rule]) -> Iterator[StoreRefund]:
        meters = verdict.meters or verdict.match.meters
        for rule, meter, decision in zip(verdict.rules, meters, verdict.decisions, strict=True):
            if decision and any(rule is one for one in rules):
                charge = (meter, decision.key, decision.cost)
                now = self._clock and self._clock()
                store = self._stores.of(rule)
                at = self._stores.charged_at(store, meter, decision)
                yield StoreRefund(store, charge, at, now, decision.degraded)

    def _places_of(self, verdict: Verdict) -> Iterator[HeldSlot]:
        meters = verdict.meters or verdict.match.meters
        for rule, meter, decision in zip(verdict.rules, meters, verdict.decisions, strict=True):
            if decision and decision.cost and uses_slots(meter.algorithm):
                account = self._accounts[id(self._stores.of(rule))]
                charge = (meter, decision.key, decision.cost)
                yield HeldSlot(account, charge, charged_at(meter, decision), decision.degraded)
