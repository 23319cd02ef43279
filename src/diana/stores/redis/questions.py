"""Questions to servers, and what their answers mean.

These are generators that yield errands; sockets and threads are elsewhere.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from diana.core.charge import Charges
from diana.core.decision import Decision
from diana.stores.redis.background.keeper import Keeper
from diana.stores.redis.connection.client import ClientKeeper
from diana.stores.redis.connection.topology import slot_of_key
from diana.stores.redis.errands import AnyServer, Decide, Errand, Errands, Swap, Wait
from diana.stores.redis.protocol.commands import Lost, Moved, meant_by_failure
from diana.stores.redis.protocol.compare_and_swap import Swapped, charge_all
from diana.stores.redis.protocol.wire import Plans, decisions_from_wire, states_from_wire

NO_ANSWER = (TypeError, ValueError, IndexError)
"""Raised by reading what no script of ours has said."""

T = TypeVar("T")
Steps = Generator[Errands, list[Any], T]


class Group(NamedTuple):
    """The counters of a request that one script call can decide: those of one server, in a cluster of one slot."""

    server: AnyServer | None
    places: list[int]
    charges: Charges
    keys: list[bytes]


class Questions:
    def __init__(self, keeper: Keeper | ClientKeeper, plans: Plans) -> None:
        self._keeper = keeper
        self._topology = keeper.topology
        self._plans = plans

    def look_first(self) -> Steps[None]:
        """Who is there? Waited for once in the life of a store, and once more in a forked child."""
        if not self._keeper.looked.is_set():
            self._keeper.ensure()
            yield Wait(self._keeper.looked)
            self._keeper.looked.set()  # in vain? then once is enough

    def slot_of(self, key: bytes) -> int:
        return slot_of_key(key) if self._topology.has_slots else 0

    def server_of(self, key: bytes) -> AnyServer | None:
        """None if nobody has it, or whoever has it is lost."""
        server = self._topology.server_of_slot(self.slot_of(key))
        if server is None or server.down:
            self._keeper.ensure()
            return None
        return server

    def groups(self, charges: Charges, keys: list[bytes]) -> list[Group]:
        by_slot: dict[int, list[int]] = {}
        for place, key in enumerate(keys):
            by_slot.setdefault(self.slot_of(key), []).append(place)
        if len(by_slot) == 1:
            return [Group(self.server_of(keys[0]), list(range(len(keys))), charges, keys)]
        return [
            Group(
                self.server_of(keys[places[0]]),
                places,
                [charges[place] for place in places],
                [keys[place] for place in places],
            )
            for places in by_slot.values()
        ]

    def ask(self, word: str, groups: Sequence[Group], now: int | None) -> Steps[list[Any]]:
        """Of each group its decisions and the states in which counters denied, or what went wrong. All side by side."""
        errands = {
            place: self._question(word, group.server, group, now)
            for place, group in enumerate(groups)
            if group.server is not None
        }
        replies = yield from self.carried_out(list(errands.values()))
        answers: list[Any] = [Lost("it is out of reach") for _ in groups]
        for place, errand, reply in zip(errands, errands.values(), replies, strict=True):
            answers[place] = self.understood(reply, errand.server, groups[place])
        return answers

    def carried_out(self, errands: Sequence[Errand]) -> Steps[list[Any]]:
        """All side by side; who was sent elsewhere goes there, once."""
        if not errands:
            return []
        answers = yield errands
        again: dict[int, Errand] = {}
        for place, answer in enumerate(answers):
            if isinstance(answer, Moved):
                self._keeper.look_around()
                other = self._topology.server_at(answer.endpoint)
                if other is not None and not other.down:
                    errand = errands[place]._replace(server=other, asking=answer.asking)
                    again[place] = errand
        if again:
            answers = list(answers)
            replies = yield list(again.values())
            for place, reply in zip(again, replies, strict=True):
                answers[place] = reply
        return answers

    def understood(self, reply: Any, server: AnyServer, group: Group) -> Any:
        """Decisions and states, or what went wrong."""
        if isinstance(reply, Exception):
            return reply
        try:
            if isinstance(reply, Swapped):
                return _swapped(reply, group)
            at, said = reply
            if isinstance(said, bytes):
                trouble = meant_by_failure(said.decode("utf-8", "replace"))
            else:
                decisions = decisions_from_wire(at, said, group.charges)
                return decisions, states_from_wire(said, group.keys)
        except NO_ANSWER:
            trouble = Lost("this is no answer of a store")
        if isinstance(trouble, Lost):
            server.lost(trouble)
        return trouble

    def _question(
        self, word: str, server: AnyServer, group: Group, now: int | None
    ) -> Decide | Swap:
        _, _, charges, keys = group
        if self._plans.all_in_lua(charges):
            return Decide(server, keys, self._plans.argv(word, charges), now)
        meters = [meter for meter, _, _ in charges]
        return Swap(server, keys, meters, charge_all(charges, write=word == "take"), now)


def _swapped(reply: Swapped, group: Group) -> Any:
    at, outcomes, states = reply
    decisions = [
        Decision(outcome, meter.params.limit, key, cost, at)
        for outcome, (meter, key, cost) in zip(outcomes, group.charges, strict=True)
    ]
    denied = {
        key: state
        for key, state, outcome in zip(group.keys, states, outcomes, strict=True)
        if not outcome[0]
    }
    return decisions, denied
