"""The decisions that a lease does not answer: of counters that are not hot, of leases that ran dry, and without the store.

All or nothing as everywhere: what was taken from leases goes back into them, what was charged to a pool is given back there. A store
that is lost does what each rule's `when_down` says, as for any other scope.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from diana.core.charge import Charges, checked_cost
from diana.core.contracts import Clock
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.redis_client.reply_errors import (
    Failure,
    ProtocolError,
    ServerRefused,
    UnknownOutcome,
)
from diana.runtime.clock import wall_us
from diana.stores.redis.cluster_routing import JobSteps
from diana.stores.redis.decisions import DecisionPlanner
from diana.stores.redis.dispatch import AnyServer, ExchangeJob, Job
from diana.stores.redis.leases.lease_request import LeaseGrant, LeaseRequest, WireLimits, ask_pool
from diana.stores.redis.leases.lease_table import LeaseClaim, LeaseTable
from diana.stores.redis.refunds import UNREACHABLE, Charged

OVERTAKEN = ProtocolError("an ask was overtaken")


class Decided(NamedTuple):
    """One charge of a request."""

    decision: Decision
    at_hand: bool
    """From a lease."""


class LeaseDecider(DecisionPlanner):
    table: LeaseTable
    limits: WireLimits
    wall: Clock = staticmethod(wall_us)

    def decide(self, charges: Charges, now: int | None) -> JobSteps[list[Decision]]:
        if not charges:
            return []
        keys = self._plans.keys(charges)
        self._count("decisions")
        yield from self._wait_for_servers()
        sent_us = self.table.clock()
        claims = [self._claim(charge, key, now) for charge, key in zip(charges, keys, strict=True)]
        if any(isinstance(claim, Decision) and not claim for claim in claims):
            # Known without asking. What was to be asked for the others is not sent.
            self._lose_all(claims)
            return (yield from self._none_charged(charges, claims, now))
        try:
            answers = yield from self._ask_all(charges, keys, claims, now)
        except BaseException:
            # Cancelled or interrupted: the charge stands, but a lease that still waited for its reply would wait for ever.
            self._lose_all(claims)
            raise
        replies = iter(answers)
        decided = [
            Decided(claim, at_hand=True)
            if isinstance(claim, Decision)
            else Decided(
                self._decision(charge, key, claim, next(replies), sent_us, now), at_hand=False
            )
            for charge, key, claim in zip(charges, keys, claims, strict=True)
        ]
        if not all(one.decision for one in decided):
            yield from self._give_back_all(charges, decided, now)
        return [one.decision for one in decided]

    def peek(self, charges: Charges, now: int | None) -> JobSteps[list[Decision]]:
        yield from self._wait_for_servers()
        keys = self._plans.keys(charges)
        decisions: list[Decision] = []
        for (meter, key, cost), wire_key in zip(charges, keys, strict=True):
            found = self.table.outcome_at_hand(meter, key, cost) if now is None else None
            if found is not None:
                outcome, at = found
                decisions.append(Decision(outcome, meter.params.limit, key, cost, at))
                continue
            look = LeaseRequest(cost=cost, writes=False)
            (reply,) = yield from self._ask_pools([(meter, wire_key, look)], now)
            if isinstance(reply, Failure):
                decisions += self._fallback.peek([(meter, key, cost)], now)
            else:
                at, grant = reply
                decisions.append(Decision(_outcome(grant, 0), meter.params.limit, key, cost, at))
        return decisions

    def refund(
        self, charges: Charges, at: int, now: int | None, here: bool = False
    ) -> JobSteps[None]:
        """To the live lease, else to the pool."""
        for_pool = [
            (meter, key, cost)
            for meter, key, cost in charges
            if here or now is not None or not self.table.put_back(meter, key, cost, at)
        ]
        if for_pool:
            yield from super().refund(for_pool, at, now, here)

    def reset(self, meter: CounterSpec, key: str) -> JobSteps[None]:
        """What nodes hold of it stays theirs until it ends."""
        (wire_key,) = self._plans.keys([(meter, key, 1)])
        yield from super().reset(meter, key)
        self.table.forget_empty(meter, key, wire_key)

    def _claim(
        self, charge: tuple[CounterSpec, str, int], wire_key: bytes, now: int | None
    ) -> Decision | LeaseClaim:
        """With a clock that is given there are no leases: they end by a clock of their own."""
        meter, key, cost = charge
        checked_cost(cost)
        if now is not None:
            return LeaseClaim(None, LeaseRequest(cost=cost))
        return self.table.claim(meter, key, wire_key, cost)

    def _lose_all(self, claims: Sequence[Decision | LeaseClaim]) -> None:
        for claim in claims:
            if isinstance(claim, LeaseClaim) and claim.lease is not None:
                self.table.lose(claim.lease, claim.ask)

    def _ask_all(
        self,
        charges: Charges,
        keys: Sequence[bytes],
        claims: list[Decision | LeaseClaim],
        now: int | None,
    ) -> JobSteps[list[Any]]:
        """Of each that is Asked. One that another process of the zone has overtaken was not heard: it is asked without a lease."""
        places = [place for place, claim in enumerate(claims) if isinstance(claim, LeaseClaim)]

        def asks(some: Sequence[int]) -> list[tuple[CounterSpec, bytes, LeaseRequest]]:
            return [(charges[place][0], keys[place], claims[place].ask) for place in some]  # type: ignore[union-attr]

        answers = dict(zip(places, (yield from self._ask_pools(asks(places), now)), strict=True))
        again = [place for place, answer in answers.items() if answer is OVERTAKEN]
        if again:
            for place in again:
                cost = charges[place][2]
                self._lose_all([claims[place]])
                claims[place] = LeaseClaim(None, LeaseRequest(cost=cost))
            answers |= zip(again, (yield from self._ask_pools(asks(again), now)), strict=True)
        return list(answers.values())

    def _ask_pools(
        self, asks: Sequence[tuple[CounterSpec, bytes, LeaseRequest]], now: int | None
    ) -> JobSteps[list[Any]]:
        """Of each an Answer, or what went wrong. All side by side."""
        jobs: dict[int, Job] = {}
        for place, (meter, key, ask) in enumerate(asks):
            server = self._server_of(key)
            if server is not None:
                jobs[place] = self._ask_job(server, meter, key, ask, now)
        replies = yield from self._carry_out(list(jobs.values()))
        answers: list[Any] = [UNREACHABLE for _ in asks]
        for place, job, reply in zip(jobs, jobs.values(), replies, strict=True):
            answers[place] = reply
            if isinstance(reply, ProtocolError | ServerRefused):
                job.server.fail(reply)
            elif not isinstance(reply, Failure) and reply[1] is None:
                answers[place] = OVERTAKEN
        return answers

    def _ask_job(
        self, server: AnyServer, meter: CounterSpec, key: bytes, ask: LeaseRequest, now: int | None
    ) -> ExchangeJob:
        return ExchangeJob(
            server,
            lambda server, budget, asking: ask_pool(
                self.limits, server.clock, key, meter, ask, now, budget, asking
            ),
        )

    def _decision(
        self,
        charge: tuple[CounterSpec, str, int],
        wire_key: bytes,
        claim: LeaseClaim,
        reply: Any,
        sent_us: int,
        now: int | None,
    ) -> Decision:
        meter, key, cost = charge
        if isinstance(reply, Failure):
            if claim.lease is not None:
                self.table.lose(claim.lease, claim.ask)
            self._count("degraded")
            note = not isinstance(reply, UnknownOutcome)
            here = self._time_here(now)
            return self._fallback.decide([charge], [wire_key], here, note=note)[0]
        at, grant = reply
        if claim.lease is not None:
            self.table.settle(claim.lease, claim.ask, grant, at)
        elif not grant.passed and now is None:
            self.table.remember_denial(meter, wire_key, cost, grant, sent_us)
        asked = self.wall() if now is None else now
        self._fallback.learn(wire_key, meter.params.limit - grant.remaining, asked)
        return Decision(_outcome(grant, grant.granted), meter.params.limit, key, cost, at)

    def _time_here(self, now: int | None) -> int | None:
        """None: the fallback's own clock, unless this one is another. The store has its own."""
        return now if now is not None or self.wall is wall_us else self.wall()

    def _none_charged(
        self, charges: Charges, claims: Sequence[Decision | LeaseClaim], now: int | None
    ) -> JobSteps[list[Decision]]:
        decisions, for_pool = [], []
        for (meter, key, cost), claim in zip(charges, claims, strict=True):
            if isinstance(claim, LeaseClaim):
                _, outcome = meter.decide(None, meter.params, 0, 0)
                decisions.append(Decision(outcome, meter.params.limit, key, cost, self.wall()))
                continue
            if claim:
                if not self.table.put_back(meter, key, cost, claim.at):
                    for_pool.append(Charged((meter, key, cost), claim.at, here=False))
                claim = _without_charge(claim)
            decisions.append(claim)
        if for_pool:
            yield from self._refund(for_pool, now)
        return decisions

    def _give_back_all(
        self, charges: Charges, decided: list[Decided], now: int | None
    ) -> JobSteps[None]:
        """One denies: what the others were charged comes back, and they show what they have without it."""
        for_pool = []
        for place, (charge, (decision, at_hand)) in enumerate(zip(charges, decided, strict=True)):
            if decision:
                meter, key, cost = charge
                if not (at_hand and self.table.put_back(meter, key, cost, decision.at)):
                    for_pool.append(Charged(charge, decision.at, decision.degraded))
                decided[place] = Decided(_without_charge(decision), at_hand)
        if for_pool:
            yield from self._refund(for_pool, now)


def _outcome(grant: LeaseGrant, held: int) -> tuple[bool, int, int, int, int]:
    retry_us = 0 if grant.passed else grant.retry_us
    return grant.passed, grant.remaining + held, retry_us, grant.reset_us, 0


def _without_charge(decision: Decision) -> Decision:
    _, remaining, _, reset_us, _ = decision.outcome
    return decision._replace(outcome=(True, remaining + decision.cost, 0, reset_us, 0))
