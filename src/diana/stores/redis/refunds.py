"""How charges are refunded: at once if possible, else in the background.

Pure, as `decisions` is: it yields jobs and is sent their answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from diana.core.counter import CounterSpec
from diana.core.limit import uses_slots
from diana.redis_client.reply_errors import (
    Failure,
    NoConnection,
)
from diana.stores.redis.app_client import ClientKeeper
from diana.stores.redis.cluster_routing import JobSteps, Routing
from diana.stores.redis.deny_cache import DenyCache
from diana.stores.redis.dispatch import AnyServer, AskJob, ExchangeJob, Job
from diana.stores.redis.local_fallback import Fallback
from diana.stores.redis.maintenance.topology_refresh import TopologyRefresh
from diana.stores.redis.pending_refunds import may_be_tried_again
from diana.stores.redis.protocol.batch import DecisionRequest
from diana.stores.redis.protocol.commands import Exchange
from diana.stores.redis.protocol.compare_and_swap import (
    Part,
    Refund,
    Renewal,
    StateChange,
    Swapped,
    swap,
)
from diana.stores.redis.protocol.wire_format import (
    CounterEncoder,
)

UNREADABLE = (TypeError, ValueError, IndexError)
"""Raised by reading what no script of ours has said."""
UNREACHABLE = NoConnection("the store is unreachable")


class Charged(NamedTuple):
    """A charge that was made."""

    charge: tuple[CounterSpec, str, int]
    at: int
    here: bool
    """Because the store was lost."""


class Refunding(Routing):
    def __init__(
        self,
        keeper: TopologyRefresh | ClientKeeper,
        plans: CounterEncoder,
        deny_cache: DenyCache,
        fallback: Fallback,
    ) -> None:
        super().__init__(keeper)
        self._plans = plans
        self._deny_cache = deny_cache
        self._fallback = fallback
        self._pending = keeper.refunds

    def release(self, places: Sequence[Charged], now: int | None) -> JobSteps[list[Charged]]:
        """Give places back, side by side. Gives those that could not be: done twice, it is done once, so it may be tried again."""
        yield from self._wait_for_servers()
        keys = self._plans.keys([one.charge for one in places])
        failed: list[Charged] = []
        sent: list[Charged] = []
        jobs: list[Job] = []
        for key, place in zip(keys, places, strict=True):
            if place.here:
                self._fallback.refund(place.charge, key, place.at, now)
                continue
            server = self._server_of(key)
            if server is None:
                failed.append(place)
            else:
                sent.append(place)
                meter, _, cost = place.charge
                refund = Refund(meter, [Part(cost, place.at)])
                jobs.append(self._refund_job(server, key, refund, now))
        answers = yield from self._carry_out(jobs)
        self._deny_cache.forget(*keys)
        failed += [
            one for one, answer in zip(sent, answers, strict=True) if isinstance(answer, Failure)
        ]
        return failed

    def renew(self, place: Charged, now: int | None) -> JobSteps[int | None]:
        """The place's moment from now on, 0 if it has run off and all are taken; None if the store did not say."""
        if place.here:
            return self._fallback.renew(place.charge, place.at, now)
        yield from self._wait_for_servers()
        (key,) = self._plans.keys([place.charge])
        server = self._server_of(key)
        if server is None:
            return None
        meter, _, cost = place.charge
        job = self._renewal_job(server, key, Renewal(meter, cost, place.at), now)
        (answer,) = yield from self._carry_out([job])
        try:
            if isinstance(answer, Swapped):
                return int(answer.result)
            return int(answer[1][1]) if answer.__class__ is tuple else None
        except UNREADABLE:
            return None

    def _refund(self, charged: Sequence[Charged], now: int | None) -> JobSteps[None]:
        """Where each was charged, if it was at all."""
        keys = self._plans.keys([one.charge for one in charged])
        jobs: list[Job] = []
        sent: list[tuple[bytes, Refund]] = []
        for key, ((meter, subject, cost), at, here) in zip(keys, charged, strict=True):
            self._deny_cache.forget(key)
            if here:
                cost = self._fallback.refund((meter, subject, cost), key, at, self._time_here(now))
            if not cost:
                continue
            server = self._server_of(key)
            if server is None:
                self._pending.add(key, meter, Part(cost, at), now)
            else:
                refund = Refund(meter, [Part(cost, at)])
                jobs.append(self._refund_job(server, key, refund, now))
                sent.append((key, refund))
        answers = yield from self._carry_out(jobs)
        for (key, refund), answer in zip(sent, answers, strict=True):
            if may_be_tried_again(refund, answer):
                self._pending.add(key, refund.meter, refund.parts[0], now)
        self._deny_cache.forget(*keys)  # another request may have been denied before it arrived

    def _refund_pending(self) -> JobSteps[None]:
        """With the application's own client no thread does it."""
        for attempt in self._pending.take(lambda key: self._server_of(key) is not None):
            server = self._server_of(attempt.pending[0].key)
            if server is None:
                self._pending.conclude(attempt, UNREACHABLE)
                continue
            (answer,) = yield from self._carry_out([ExchangeJob(server, attempt.start)])
            self._pending.conclude(attempt, answer)

    def _refund_job(self, server: AnyServer, key: bytes, refund: Refund, now: int | None) -> Job:
        ((cost, at),) = refund.parts
        return self._revision_job("refund", server, key, refund.meter, f"{cost}@{at}", refund, now)

    def _renewal_job(self, server: AnyServer, key: bytes, renewal: Renewal, now: int | None) -> Job:
        said = f"{renewal.cost}@{renewal.at}"
        return self._revision_job("renew", server, key, renewal.meter, said, renewal, now)

    def _revision_job(
        self,
        verb: str,
        server: AnyServer,
        key: bytes,
        meter: CounterSpec,
        charge: str,
        change: StateChange,
        now: int | None,
    ) -> Job:
        """Refund or renew a charge. Places travel with the decisions of others; the rest is compared and swapped."""
        if uses_slots(meter.algorithm) and getattr(meter.algorithm, f"lua_{verb}", None):
            limit = self._plans.of(meter).limit
            return AskJob(
                server, DecisionRequest([key], [verb, 1, limit, charge], now, is_final=True)
            )

        def start(server: AnyServer, budget: Any, asking: bool) -> Exchange:
            return swap(server.clock, [key], [meter], change, now, budget, asking)

        return ExchangeJob(server, start)

    def _time_here(self, now: int | None) -> int | None:
        """For the fallback; None: its own clock."""
        return now
