"""What is asked, in order.

1. Was it just denied? Then it is again. 2. Which server has each counter? In a cluster a request may need several; then each slot decides
by itself, and if one denies, the others get their charge back. 3. Ask; whoever cannot be asked, or does not answer, is counted for here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from diana.core.charge import ONE, Charges
from diana.core.contracts import State
from diana.core.decision import Decision
from diana.core.errors import StoreError
from diana.core.meter import Meter
from diana.stores.clock import wall_us
from diana.stores.redis.background.keeper import Keeper
from diana.stores.redis.connection.client import ClientKeeper
from diana.stores.redis.connection.server import Server
from diana.stores.redis.deny_cache import Denials
from diana.stores.redis.errands import Decide, Errand, Forget, Hold, Swap
from diana.stores.redis.fallback import Fallback
from diana.stores.redis.protocol.commands import Lost
from diana.stores.redis.protocol.compare_and_swap import Refund
from diana.stores.redis.protocol.wire import Plans, decisions_from_wire
from diana.stores.redis.questions import NO_ANSWER, Group, Questions, Steps
from diana.stores.redis.settling import settle


class Short(NamedTuple):
    """A request that needs no more than one question to one server."""

    server: Server
    keys: list[bytes]
    argv: list[Any]
    asked: int
    """When, by the clock here or the one given."""


class Made(NamedTuple):
    """A charge that was made."""

    charge: tuple[Meter, str, int]
    at: int
    here: bool
    """Because the store was lost."""


class Asking:
    def __init__(
        self,
        keeper: Keeper | ClientKeeper,
        plans: Plans,
        denials: Denials,
        fallback: Fallback,
        count: Callable[..., None],
    ) -> None:
        self._topology = keeper.topology
        self._leaves_debts = keeper.leaves_debts
        self._questions = Questions(keeper, plans)
        self._plans = plans
        self._denials = denials
        self._fallback = fallback
        self._count = count

    def shortcut(self, charges: Charges, now: int | None) -> Short | None:
        """The ordinary case: one server that is well, nothing remembered of these keys. None: `deciding`."""
        topology = self._topology
        server = None if topology.has_slots else topology.server_of_slot(0)
        if not isinstance(server, Server) or server.down or not charges:
            return None
        keys, argv = self._plans.prepared(charges)
        if argv is None or self._denials.knows_any(keys):
            return None
        self._count("decisions")
        return Short(server, keys, argv, wall_us() if now is None else now)

    def concluded(self, reply: Any, charges: Charges) -> list[Decision] | None:
        """All pass. None: `concluding`."""
        try:
            if reply.__class__ is tuple and reply[1][0] == 1:
                return decisions_from_wire(reply[0], reply[1], charges)
        except NO_ANSWER:
            pass
        return None

    def concluding(
        self, short: Short, reply: Any, charges: Charges, now: int | None
    ) -> Steps[list[Decision]]:
        """A denial, or something unusual; None as the reply: ask again, in full."""
        server, keys, argv, asked = short
        if reply is None:
            (reply,) = yield from self._questions.carried_out([Decide(server, keys, argv, now)])
        group = Group(server, list(range(len(keys))), charges, keys)
        answer = self._questions.understood(reply, server, group)
        return self._noted(*self._taken(group, answer, now), keys, asked)

    def deciding(self, charges: Charges, now: int | None) -> Steps[list[Decision]]:
        if not charges:
            return []
        keys = self._plans.keys(charges)
        self._count("decisions")
        asked = wall_us() if now is None else now
        if self._denials:
            denied = self._denials.answer(charges, keys, asked)
            if denied is not None:
                self._count("deny_cache_hits")
                return denied
        yield from self._questions.look_first()
        groups = self._questions.groups(charges, keys)
        answers = yield from self._questions.ask("take", groups, now)
        decisions: dict[int, Decision] = {}
        states: dict[bytes, State | None] = {}
        for group, answer in zip(groups, answers, strict=True):
            some, denied_in = self._taken(group, answer, now)
            decisions.update(zip(group.places, some, strict=True))
            states |= denied_in
        if len(groups) > 1 and not all(decisions.values()):
            yield from self._give_back(groups, decisions, now)
        if self._leaves_debts and not decisions[0].degraded:
            yield from self._settle(groups[0].server)
        ordered = [decisions[place] for place in range(len(charges))]
        return self._noted(ordered, states, keys, asked)

    def peeking(self, charges: Charges, now: int | None) -> Steps[list[Decision]]:
        yield from self._questions.look_first()
        groups = self._questions.groups(charges, self._plans.keys(charges))
        answers = yield from self._questions.ask("look", groups, now)
        decisions: dict[int, Decision] = {}
        for group, answer in zip(groups, answers, strict=True):
            lost = isinstance(answer, Exception)
            some = self._fallback.peek(group.charges, now) if lost else answer[0]
            decisions.update(zip(group.places, some, strict=True))
        return [decisions[place] for place in range(len(charges))]

    def refunding(
        self, charges: Charges, at: int, now: int | None, here: bool = False
    ) -> Steps[None]:
        """`here`: what was decided here, while the store was lost."""
        yield from self._questions.look_first()
        yield from self._refund([Made(charge, at, here) for charge in charges], now)

    def resetting(self, meter: Meter, key: str) -> Steps[None]:
        (wire_key,) = self._plans.keys([(meter, key, ONE)])
        self._fallback.reset(meter, key, wire_key)
        yield from self._questions.look_first()
        server = self._questions.server_of(wire_key)
        answer: Any = Lost("it is out of reach")
        if server is not None:
            (answer,) = yield from self._questions.carried_out([Forget(server, [wire_key])])
        self._denials.forget(wire_key)
        if isinstance(answer, Exception):
            raise StoreError(f"the store could not reset a key: {answer}")

    def _taken(
        self, group: Group, answer: Any, now: int | None
    ) -> tuple[list[Decision], dict[bytes, State | None]]:
        """What the store said, or, if it said nothing, what is said here."""
        if not isinstance(answer, Exception):
            decisions, states = answer
            return decisions, states
        self._count("degraded")
        return self._fallback.decide(group.charges, group.keys, now), {}

    def _noted(
        self,
        decisions: list[Decision],
        states: dict[bytes, State | None],
        keys: list[bytes],
        asked: int,
    ) -> list[Decision]:
        """Denials are remembered; what passes shows that what was remembered holds no longer."""
        if states:
            self._denials.remember(decisions, keys, states, asked)
        elif self._denials:
            for key in keys:
                self._denials.forget(key)
        return decisions

    def _give_back(
        self, groups: Sequence[Group], decisions: dict[int, Decision], now: int | None
    ) -> Steps[None]:
        """One slot denied: what the others were charged comes back, and they show what they have without it."""
        passed = [
            (place, charge)
            for group in groups
            if all(decisions[place] for place in group.places)
            for place, charge in zip(group.places, group.charges, strict=True)
        ]
        if not passed:
            return
        made = [
            Made(charge, decisions[place].at, decisions[place].degraded) for place, charge in passed
        ]
        yield from self._refund(made, now)
        found = yield from self.peeking([(meter, key, 0) for _, (meter, key, _) in passed], now)
        for (place, charge), decision in zip(passed, found, strict=True):
            decisions[place] = decision._replace(cost=charge[2])

    def _refund(self, charged: Sequence[Made], now: int | None) -> Steps[None]:
        """Where each was charged, if it was at all; what is lost on the way runs off by itself."""
        keys = self._plans.keys([made.charge for made in charged])
        errands: list[Errand] = []
        for key, (charge, at, here) in zip(keys, charged, strict=True):
            self._denials.forget(key)
            meter, _, cost = charge
            if here and meter.when_down != "local":
                continue  # let pass without a charge
            if here and self._fallback.refund(charge, key, at, now):
                continue  # else it was settled meanwhile: it is the store's to give back
            server = self._questions.server_of(key)
            if server is not None:
                errands.append(Swap(server, [key], [meter], Refund(meter, cost, at), now))
        yield from self._questions.carried_out(errands)
        for key in keys:
            self._denials.forget(key)  # somebody may have been denied before it arrived

    def _settle(self, server: Any) -> Steps[None]:
        """What was admitted here meanwhile: with somebody's own client there is nobody else to do it."""
        if not self._fallback.owes():
            return
        debts = list(self._fallback.settled(lambda _: True).items())
        unsent = dict(debts)
        for talk, some in settle(server.clock, debts, self._questions.slot_of, 1.0):
            for key, _ in some:
                del unsent[key]
            (answer,) = yield [Hold(server, talk)]
            if isinstance(answer, Exception):
                break
            self._count("settled", sum(debt.admitted for _, debt in some))
        self._fallback.owe(unsent)
