"""What `peek` looks at, and the verdict that `check` would give."""

from __future__ import annotations

from typing import NamedTuple

from diana.core.contracts import Store
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.matched_rules import MatchedRules
from diana.core.policy import Policy
from diana.core.request import Request
from diana.core.rule import Rule
from diana.core.verdict import Verdict
from diana.core.zero import REFUSED
from diana.engine.charge_builder import NO_IDENTITY, REFUSED_KEY, Charge, is_refused
from diana.runtime.clock import wall_us


class PeekPlan(NamedTuple):
    """What `check` would charge, without charging it."""

    policy: Policy
    request: Request
    match: MatchedRules
    meters: tuple[CounterSpec, ...]
    asked: list[tuple[Store, Charge]]
    """Without those that are refused: they need no store."""
    refused: dict[int, Decision]
    """By the rule's index in the match."""
    listed: str | None
    """What of a `deny` list the request is."""
    now: int | None

    @classmethod
    def of(
        cls,
        policy: Policy,
        request: Request,
        match: MatchedRules,
        charges: list[Charge],
        stores: list[Store],
        listed: str | None,
        now: int | None,
    ) -> PeekPlan:
        asked: list[tuple[Store, Charge]] = []
        refused: dict[int, Decision] = {}
        for index, (store, charge) in enumerate(zip(stores, charges, strict=True)):
            if listed is not None or is_refused(charge):
                refused[index] = denial_without_store(charge, now)
            else:
                asked.append((store, charge))
        meters = tuple(charge[0] for charge in charges)
        return cls(policy, request, match, meters, asked, refused, listed, now)

    def verdict(self, decisions: list[Decision]) -> Verdict:
        """What `check` would return, if the stores decide so; observers are not notified."""
        peeked = iter(decisions)
        answers = [
            self.refused[index] if index in self.refused else next(peeked)
            for index in range(len(self.match.rules))
        ]
        denied_by, delay = denied_or_delayed(self.match, answers)
        return Verdict(
            denied_by is None, delay, denied_by, self.match, tuple(answers), self.policy.version, self.request, self.meters,
            listed=self.listed,
        )  # fmt: skip


def denied_or_delayed(match: MatchedRules, decisions: list[Decision]) -> tuple[Rule | None, float]:
    """The first rule that denies; else how long the request is to be delayed."""
    enforced = [(match.rules[index], decisions[index]) for index in match.enforced]
    denied_by = next((rule for rule, decision in enforced if not decision), None)
    if denied_by is not None:
        return denied_by, 0.0
    return None, max((decision.delay for _, decision in enforced), default=0.0)


def denial_without_store(charge: Charge, now: int | None) -> Decision:
    """Of a charge that is refused."""
    meter, key, cost = charge
    at = wall_us() if now is None else now
    shown_key = NO_IDENTITY if key is REFUSED_KEY else key
    return Decision(REFUSED, meter.params.limit, shown_key, cost, at)
