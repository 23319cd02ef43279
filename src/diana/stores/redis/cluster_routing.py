"""Which server has a counter, and how what is asked gets there. Pure, as `decisions` is: it yields jobs and is sent their answers.

In a cluster the counters of a request may be in several slots: each slot is a group, which one script call can decide. A server that
says that a slot has moved is believed, and asked elsewhere once.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from diana.core.charge import Charges
from diana.redis_client.reply_errors import Moved
from diana.redis_client.topology import slot_of_key
from diana.stores.redis.app_client import ClientKeeper
from diana.stores.redis.dispatch import AnyServer, Job
from diana.stores.redis.maintenance.topology_refresh import TopologyRefresh

T = TypeVar("T")


class WaitForServers:
    """Until it is known for the first time which servers there are, at most for the budget."""


JobSteps = Generator[Sequence[Job] | WaitForServers, list[Any], T]


class Group(NamedTuple):
    """The counters of a request that one script call can decide: those of one server, in a cluster of one slot."""

    server: AnyServer | None
    places: list[int]
    charges: Charges
    keys: list[bytes]


class Routing:
    def __init__(self, keeper: TopologyRefresh | ClientKeeper) -> None:
        self._keeper = keeper
        self._topology = keeper.topology

    def _wait_for_servers(self) -> JobSteps[None]:
        """Once in the life of a store, and once more in a forked child."""
        if not self._keeper.has_looked:
            self._keeper.ensure()
            yield WaitForServers()

    def _slot_of(self, key: bytes) -> int:
        return slot_of_key(key) if self._topology.has_slots else 0

    def _server_of(self, key: bytes) -> AnyServer | None:
        """None if no server has it, or the one that has it is lost."""
        server = self._topology.server_of_slot(self._slot_of(key))
        if server is None or server.is_lost:
            self._keeper.ensure()
            return None
        return server

    def _groups(self, charges: Charges, keys: list[bytes]) -> list[Group]:
        by_slot: dict[int, list[int]] = {}
        for place, key in enumerate(keys):
            by_slot.setdefault(self._slot_of(key), []).append(place)
        if len(by_slot) == 1:
            return [Group(self._server_of(keys[0]), list(range(len(keys))), charges, keys)]
        return [
            Group(
                self._server_of(keys[places[0]]),
                places,
                [charges[place] for place in places],
                [keys[place] for place in places],
            )
            for places in by_slot.values()
        ]

    def _carry_out(self, jobs: Sequence[Job]) -> JobSteps[list[Any]]:
        if not jobs:
            return []
        answers = yield jobs
        return (yield from self._follow(jobs, answers))

    def _follow(self, jobs: Sequence[Job], answers: Sequence[Any]) -> JobSteps[list[Any]]:
        """What was sent elsewhere goes there, once."""
        again: dict[int, Job] = {}
        for place, answer in enumerate(answers):
            if isinstance(answer, Moved):
                self._keeper.look_around()
                other = self._topology.server_at(answer.endpoint)
                if other is not None and not other.is_lost:
                    again[place] = jobs[place]._replace(server=other, asking=answer.asking)
        answers = list(answers)
        if again:
            replies = yield list(again.values())
            for place, reply in zip(again, replies, strict=True):
                answers[place] = reply
        return answers
