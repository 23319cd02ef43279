"""What is asked, of which server, and what the replies mean. Pure: no socket, no thread, no loop.

1. Was the key just denied? Then it is again. 2. Which server has each counter? In a cluster a request may need several; then each slot
decides by itself, and if one denies, the others get their charge back. 3. Ask; what cannot be asked, or is not answered, is decided here.

`prepare` and `conclude` are the ordinary case: one question to one server that is well. Everything else is a generator that yields jobs and
is sent their answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from diana.core.charge import ONE, Charges, charged_at
from diana.core.contracts import State
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.errors import StoreError
from diana.core.limit import uses_slots
from diana.redis_client.reply_errors import (
    Failure,
    Moved,
    ProtocolError,
    ServerRefused,
    UnknownOutcome,
    failure_from_script,
)
from diana.runtime.clock import wall_us
from diana.stores.redis.app_client import ClientKeeper
from diana.stores.redis.cluster_routing import Group, JobSteps
from diana.stores.redis.deny_cache import Asking, DenyCache
from diana.stores.redis.dispatch import AnyServer, AskJob, ExchangeJob, Job
from diana.stores.redis.local_fallback import Fallback
from diana.stores.redis.maintenance.topology_refresh import TopologyRefresh
from diana.stores.redis.protocol.batch import DENIED_MEANWHILE, DecisionRequest
from diana.stores.redis.protocol.commands import reset_counters
from diana.stores.redis.protocol.compare_and_swap import (
    Swapped,
    charge_all,
    swap,
)
from diana.stores.redis.protocol.wire_format import (
    CounterEncoder,
    decisions_from_wire,
    states_from_wire,
)
from diana.stores.redis.refunds import UNREACHABLE, UNREADABLE, Charged, Refunding

_new = tuple.__new__


class PreparedDecision(NamedTuple):
    """A request that needs no more than one question to one server."""

    server: AnyServer
    ask: DecisionRequest
    asking: Asking


class DecisionPlanner(Refunding):
    def __init__(
        self,
        keeper: TopologyRefresh | ClientKeeper,
        plans: CounterEncoder,
        deny_cache: DenyCache,
        fallback: Fallback,
        count: Callable[..., None],
    ) -> None:
        super().__init__(keeper, plans, deny_cache, fallback)
        self._keeper_settles = keeper.settles
        self._count = count

    def prepare(self, charges: Charges, now: int | None) -> PreparedDecision | None:
        """The ordinary case: one server that is well, nothing remembered of these keys. None: `decide`."""
        topology = self._topology
        server = None if topology.has_slots else topology.server_of_slot(0)
        if server is None or server.is_lost or not charges or self._must_settle():
            return None
        keys, argv = self._plans.prepared(charges)
        if argv is None or self._deny_cache.knows_any(keys):
            return None
        self._count("decisions")
        asking = self._deny_cache.begin(wall_us() if now is None else now)
        return _new(PreparedDecision, (server, DecisionRequest(keys, argv, now), asking))

    def conclude(
        self, question: PreparedDecision, reply: Any, charges: Charges
    ) -> list[Decision] | None:
        """All pass. None: `conclude_slowly`."""
        try:
            if reply.__class__ is tuple and reply[1][0] == 1:
                decisions = decisions_from_wire(reply[0], reply[1], charges)
                _, ask, (asked, _) = question
                for place, decision in enumerate(decisions):
                    self._fallback.learn(ask.keys[place], decision[1] - decision[0][1], asked)
                self._deny_cache.forget(*ask.keys)
                return decisions
        except UNREADABLE:
            pass
        return None

    def abandon(self, question: PreparedDecision) -> None:
        """Nothing waits for the reply any longer; the store may charge it all the same."""
        self._deny_cache.forget_room(question.ask.keys)

    def conclude_slowly(
        self, question: PreparedDecision, reply: Any, charges: Charges, now: int | None
    ) -> JobSteps[list[Decision]]:
        """A denial, or something unusual."""
        server, ask, asking = question
        if reply is DENIED_MEANWHILE:
            return (yield from self._ask_once_more(charges, ask.keys, now))
        group = Group(server, list(range(len(ask.keys))), charges, ask.keys)
        if isinstance(reply, Moved):
            (reply,) = yield from self._follow([AskJob(server, ask)], [reply])
        decisions, states = self._outcome(group, self._read(reply, server, group), now)
        return self._remember(decisions, states, ask.keys, asking)

    def decide(self, charges: Charges, now: int | None) -> JobSteps[list[Decision]]:
        if not charges:
            return []
        keys = self._plans.keys(charges)
        self._count("decisions")
        denied = self._denied(charges, keys, now)
        if denied is not None:
            return denied
        yield from self._wait_for_servers()
        return (yield from self._decide(charges, keys, now))

    def publish_limit(self, meter: CounterSpec) -> None:
        """As the first charge does."""
        self._plans.of(meter)

    def peek(self, charges: Charges, now: int | None) -> JobSteps[list[Decision]]:
        yield from self._wait_for_servers()
        decisions, _ = yield from self._look(charges, self._plans.keys(charges), now)
        return decisions

    def refund(
        self, charges: Charges, at: int, now: int | None, here: bool = False
    ) -> JobSteps[None]:
        """`here`: what was decided here, while the store was lost."""
        yield from self._wait_for_servers()
        yield from self._refund([Charged(charge, at, here) for charge in charges], now)

    def reset(self, meter: CounterSpec, key: str) -> JobSteps[None]:
        (wire_key,) = self._plans.keys([(meter, key, ONE)])
        self._fallback.reset(meter, key, wire_key)
        yield from self._wait_for_servers()
        server = self._server_of(wire_key)
        answer: Any = UNREACHABLE
        if server is not None:
            job = ExchangeJob(
                server,
                lambda server, budget, asking: reset_counters(
                    server.clock, [wire_key], budget, asking
                ),
            )
            (answer,) = yield from self._carry_out([job])
        self._deny_cache.forget(wire_key)
        if isinstance(answer, Exception):
            raise StoreError(f"the key could not be reset: {answer}")

    def _decide(
        self, charges: Charges, keys: list[bytes], now: int | None, again: bool = False
    ) -> JobSteps[list[Decision]]:
        """`again`: what the deny cache has learned meanwhile did not settle it, so it is sent in any case."""
        asking = self._deny_cache.begin(wall_us() if now is None else now)
        groups = self._groups(charges, keys)
        # A place that another slot's denial will give back is marked: its denials elsewhere are not to be remembered.
        word = "take" if len(groups) == 1 else "hold"
        replies = yield from self._ask(word, groups, now, is_final=again)
        if DENIED_MEANWHILE in replies:
            yield from self._refund(_charged(groups, replies), now)
            return (yield from self._ask_once_more(charges, keys, now))
        decisions: dict[int, Decision] = {}
        states: dict[bytes, State | None] = {}
        for group, reply in zip(groups, replies, strict=True):
            some, denied_in = self._outcome(group, reply, now)
            decisions.update(zip(group.places, some, strict=True))
            states |= denied_in
        if len(groups) > 1 and not all(decisions.values()):
            yield from self._give_back(groups, decisions, now)
        if self._must_settle() and not decisions[0].degraded:
            yield from self._settle(groups[0].server)
            yield from self._refund_pending()
        ordered = [decisions[place] for place in range(len(charges))]
        return self._remember(ordered, states, keys, asking)

    def _ask_once_more(
        self, charges: Charges, keys: list[bytes], now: int | None
    ) -> JobSteps[list[Decision]]:
        """While it waited to be sent, the deny cache has learned of a denial that may settle it."""
        denied = self._denied(charges, keys, now)
        if denied is not None:
            return denied
        return (yield from self._decide(charges, keys, now, again=True))

    def _denied(
        self, charges: Charges, keys: list[bytes], now: int | None
    ) -> list[Decision] | None:
        if not self._deny_cache:
            return None
        denied = self._deny_cache.answer(charges, keys, wall_us() if now is None else now)
        if denied is not None:
            self._count("deny_cache_hits")
        return denied

    def _look(
        self, charges: Charges, keys: list[bytes], now: int | None
    ) -> JobSteps[tuple[list[Decision], dict[bytes, State | None]]]:
        """Decisions, and the states of those counters of which the store has told them."""
        groups = self._groups(charges, keys)
        replies = yield from self._ask("look", groups, now, is_final=True)
        decisions: dict[int, Decision] = {}
        states: dict[bytes, State | None] = {}
        for group, reply in zip(groups, replies, strict=True):
            failed = isinstance(reply, Failure)
            some, told = (self._fallback.peek(group.charges, now), {}) if failed else reply
            decisions.update(zip(group.places, some, strict=True))
            states |= told
        return [decisions[place] for place in range(len(charges))], states

    def _ask(
        self, word: str, groups: Sequence[Group], now: int | None, is_final: bool
    ) -> JobSteps[list[Any]]:
        """Of each group its decisions and the states of its counters, or what went wrong. All side by side."""
        jobs = {
            place: self._job(word, group.server, group, now, is_final)
            for place, group in enumerate(groups)
            if group.server is not None
        }
        replies = yield from self._carry_out(list(jobs.values()))
        answers: list[Any] = [UNREACHABLE for _ in groups]
        for place, job, reply in zip(jobs, jobs.values(), replies, strict=True):
            answers[place] = self._read(reply, job.server, groups[place])
        return answers

    def _job(
        self, word: str, server: AnyServer, group: Group, now: int | None, is_final: bool
    ) -> Job:
        charges, keys = group.charges, group.keys
        if self._plans.all_in_lua(charges):
            return AskJob(
                server, DecisionRequest(keys, self._plans.argv(word, charges), now, is_final)
            )
        meters = [meter for meter, _, _ in charges]
        change = charge_all(charges, write=word != "look")
        return ExchangeJob(
            server,
            lambda server, budget, asking: swap(
                server.clock, keys, meters, change, now, budget, asking
            ),
        )

    def _read(self, reply: Any, server: AnyServer, group: Group) -> Any:
        """Decisions and states, or what went wrong."""
        if isinstance(reply, Failure) or reply is DENIED_MEANWHILE:
            return reply
        failure: Failure
        try:
            if isinstance(reply, Swapped):
                decisions, states = _read_swapped(reply, group)
                # In a cluster another node's place may be held there for a moment, unmarked.
                held = self._topology.has_slots
                return decisions, {} if held else _lasting(states, decisions, group)
            at, said = reply
            if isinstance(said, bytes):
                failure = failure_from_script(said.decode("utf-8", "replace"))
            else:
                decisions = decisions_from_wire(at, said, group.charges)
                return decisions, _lasting(states_from_wire(said, group.keys), decisions, group)
        except UNREADABLE:
            failure = ProtocolError()
        if isinstance(failure, ProtocolError | ServerRefused):
            server.fail(failure)
        return failure

    def _outcome(
        self, group: Group, answer: Any, now: int | None
    ) -> tuple[list[Decision], dict[bytes, State | None]]:
        """What the store said; if it said nothing, what the deny cache knows by now, or what is decided here."""
        if not isinstance(answer, Exception):
            decisions, states = answer
            return decisions, states
        unknown = isinstance(answer, UnknownOutcome)
        denied = self._denied_without_store(group, now)
        if unknown:
            self._deny_cache.forget_room(group.keys)
        if denied is not None:
            return denied, {}
        self._count("degraded")
        return self._fallback.decide(group.charges, group.keys, now, note=not unknown), {}

    def _denied_without_store(self, group: Group, now: int | None) -> list[Decision] | None:
        """What the store said that it would deny is still denied; the counters beside it show what they have here."""
        asked = wall_us() if now is None else now
        decisions = self._deny_cache.denials(group.charges, group.keys, asked)
        if not decisions:
            return None
        self._count("deny_cache_hits")
        others = [place for place in range(len(group.keys)) if place not in decisions]
        unpaid = [(*group.charges[place][:2], 0) for place in others]
        for place, found in zip(others, self._fallback.peek(unpaid, now), strict=True):
            decisions[place] = found._replace(cost=group.charges[place][2])
        return [decisions[place] for place in range(len(group.keys))]

    def _remember(
        self,
        decisions: list[Decision],
        states: dict[bytes, State | None],
        keys: list[bytes],
        asking: Asking,
    ) -> list[Decision]:
        """Denials are remembered; what passes shows that what was remembered holds no longer."""
        for key, decision in zip(keys, decisions, strict=True):
            if not decision.degraded:
                self._fallback.learn(key, decision.limit - decision.remaining, asking.us)
        if all(decisions):
            self._deny_cache.forget(*keys)
        else:
            self._deny_cache.remember(decisions, keys, states, asking)
        return decisions

    def _give_back(
        self, groups: Sequence[Group], decisions: dict[int, Decision], now: int | None
    ) -> JobSteps[None]:
        """One slot denied: what the others were charged comes back, and they show what they have without it."""
        passed = [
            (place, charge)
            for group in groups
            if all(decisions[place] for place in group.places)
            for place, charge in zip(group.places, group.charges, strict=True)
        ]
        if not passed:
            return
        charged = [
            Charged(charge, charged_at(charge[0], decisions[place]), decisions[place].degraded)
            for place, charge in passed
        ]
        yield from self._refund(charged, now)
        asking = self._deny_cache.begin(wall_us() if now is None else now)
        unpaid = [(meter, key, 0) for _, (meter, key, _) in passed]
        keys = self._plans.keys(unpaid)
        found, states = yield from self._look(unpaid, keys, now)
        self._deny_cache.remember(found, keys, states, asking)
        for (place, charge), decision in zip(passed, found, strict=True):
            decisions[place] = decision._replace(cost=charge[2])

    def _must_settle(self) -> bool:
        return not self._keeper_settles and (self._fallback.owes() or bool(self._pending))

    def _settle(self, server: Any) -> JobSteps[None]:
        """What was admitted here meanwhile: with the application's own client no thread does it."""
        while self._fallback.owes():
            step = self._fallback.settle(server.clock, lambda _: True, self._slot_of, 1.0)
            if step is None:
                return
            exchanges, admitted = step
            for steps in exchanges:
                (answer,) = yield [ExchangeJob(server, lambda *_, steps=steps: steps)]
                if isinstance(answer, Exception):
                    return
            self._count("settled", admitted)


def _charged(groups: Sequence[Group], replies: Sequence[Any]) -> list[Charged]:
    """What the store has charged for certain."""
    return [
        Charged(charge, charged_at(charge[0], decision), here=False)
        for group, reply in zip(groups, replies, strict=True)
        if reply.__class__ is tuple and all(reply[0])
        for charge, decision in zip(group.charges, reply[0], strict=True)
    ]


def _lasting(
    states: dict[bytes, State | None], decisions: list[Decision], group: Group
) -> dict[bytes, State | None]:
    """Those that may be remembered: not where a place was denied, which may be given back at any moment."""
    if not states:
        return states
    held = {
        key
        for key, decision, (meter, _, _) in zip(group.keys, decisions, group.charges, strict=True)
        if not decision and uses_slots(meter.algorithm)
    }
    return {key: state for key, state in states.items() if key not in held}


def _read_swapped(reply: Swapped, group: Group) -> tuple[list[Decision], dict[bytes, State | None]]:
    at, outcomes, states = reply
    decisions = [
        Decision(outcome, meter.params.limit, key, cost, at)
        for outcome, (meter, key, cost) in zip(outcomes, group.charges, strict=True)
    ]
    return decisions, dict(zip(group.keys, states, strict=True))
