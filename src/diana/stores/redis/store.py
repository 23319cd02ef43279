"""Counters in Redis or Valkey: `redis://host`, `redis+cluster://…` and so on.

A shell around `decisions`; `async_store` differs by an `await`.

Decisions never raise: without the server they are made here, and marked as degraded.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Sequence
from os import getpid
from typing import Any, TypeVar

from diana.core.charge import Charges
from diana.core.contracts import Clock, Take, Zone
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.drive import drive
from diana.core.errors import ConfigError, shown
from diana.core.limit_adjustments import LiveOverrides
from diana.core.node_share import Shares, share_without_registry
from diana.core.settings import LeaseTerms
from diana.redis_client.handshake import opening
from diana.redis_client.redis_url import (
    BUDGET_US,
    NAMESPACE,
    RedisAddress,
    address_from_url,
    namespace_from_spelling,
)
from diana.redis_client.time_budget import Budget
from diana.runtime.fork import is_about_to_fork
from diana.stores.arrival_rates import Arrivals
from diana.stores.redis.app_client import ClientKeeper
from diana.stores.redis.async_store import AsyncRedisStore
from diana.stores.redis.cluster_routing import JobSteps, WaitForServers
from diana.stores.redis.decisions import DecisionPlanner
from diana.stores.redis.deny_cache import DenyCache
from diana.stores.redis.dispatch import Job, running_loop, send
from diana.stores.redis.leases import LeaseSide
from diana.stores.redis.leases.lease_misses import LeaseDecider
from diana.stores.redis.local_fallback import Fallback
from diana.stores.redis.maintenance.overrides_refresh import StoredOverrides
from diana.stores.redis.maintenance.topology_refresh import TopologyRefresh
from diana.stores.redis.pending_refunds import PendingRefunds
from diana.stores.redis.protocol.wire_format import CounterEncoder
from diana.stores.redis.reachable import check_address, check_client
from diana.stores.redis.refunds import Charged
from diana.stores.redis.store_metrics import Counts
from diana.stores.redis.verbs import LeasedStore

LOOK_SECONDS = 0.001

T = TypeVar("T")


class RedisStore:
    shared = True
    settings = ("namespace", "budget_us", "nodes", "weight", "zone", "lease")

    def __init__(
        self,
        where: RedisAddress | Any,
        *,
        namespace: str | None = None,
        budget_us: int | None = None,
        nodes: int | None = None,
        weight: int | None = None,
        zone: Zone | None = None,
        lease: LeaseTerms | None = None,
    ) -> None:
        """`zone`: what the processes of this machine count in together; then they are one node, and without the store count there."""
        said = where if isinstance(where, RedisAddress) else RedisAddress("client", ())
        _check(namespace, budget_us, nodes, weight)
        self.namespace = namespace or said.namespace or NAMESPACE
        self.budget = (budget_us or said.budget_us or BUDGET_US) / 1_000_000
        """Seconds."""
        self._where = where
        self._zone = zone
        self._terms = lease or LeaseTerms()
        self.shares = Shares(
            share_without_registry(weight or said.weight or 1, nodes or said.nodes or 1)
        )
        """What this node gets of a limit that is divided."""
        self.arrivals = Arrivals()
        """How often keys of rules that drop at random are asked for."""
        self._counts = Counts()
        self.overrides = LiveOverrides()
        """Those that stand in the store, as this node knows them."""
        self._start()
        if not is_about_to_fork():
            self._keeper.ensure()
        self.asynchronous = AsyncRedisStore(self)
        self.leased = LeasedStore(self)
        """Where rules of scope leased count."""
        _stores.add(self)

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> RedisStore:
        return cls(address_from_url(url), **settings)

    @classmethod
    def from_client(cls, client: Any, **settings: Any) -> RedisStore:
        """On a client of redis-py or valkey-py that is yours to close; its time-outs are the only bound."""
        return cls(client, **settings)

    @staticmethod
    def check_url(url: str) -> None:
        address_from_url(url)

    def bind(self, meter: CounterSpec, clock: Clock | None = None) -> Take:
        def take(key: str, cost: int = 1) -> Decision:
            """Charge the key; the Decision is true if it may pass."""
            return self.decide([(meter, key, cost)], clock and clock())[0]

        return take

    def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        decider, budget = self.decider(), Budget(self.budget)
        question = decider.prepare(charges, now)
        if question is None:
            return self.drive(decider.decide(charges, now), budget)
        try:
            reply = question.server.ask(question.ask, budget)
        except BaseException:
            decider.abandon(question)
            raise
        decisions = decider.conclude(question, reply, charges)
        if decisions is None:
            return self.drive(decider.conclude_slowly(question, reply, charges, now), budget)
        return decisions

    def peek(self, charges: Charges, now: int | None = None) -> list[Decision]:
        return self.drive(self.decider().peek(charges, now))

    def refund(self, charges: Charges, at: int, now: int | None = None) -> None:
        self.drive(self.decider().refund(charges, at, now))

    def refund_here(self, charges: Charges, at: int, now: int | None = None) -> None:
        """Of degraded decisions: the store knows nothing of them, unless they were settled since."""
        self.drive(self.decider().refund(charges, at, now, here=True))

    def release(
        self,
        places: Sequence[tuple[tuple[CounterSpec, str, int], int, bool]],
        now: int | None = None,
    ) -> list[Any]:
        return self.drive(self.decider().release([Charged(*place) for place in places], now))

    def renew(
        self,
        charge: tuple[CounterSpec, str, int],
        at: int,
        now: int | None = None,
        degraded: bool = False,
    ) -> int | None:
        """None: the store did not say."""
        return self.drive(self.decider().renew(Charged(charge, at, degraded), now))

    def reset(self, meter: CounterSpec, key: str) -> None:
        self.drive(self.decider().reset(meter, key))

    def publish_limit(self, meter: CounterSpec) -> None:
        """Make a limit of 0 known, which is never charged here; others are with their first charge."""
        self.decider().publish_limit(meter)
        self._keeper.ensure()

    def check_reachable(self) -> None:
        if isinstance(self._where, RedisAddress):
            check_address(self._where)
        else:
            check_client(self._where)

    def close(self) -> None:
        self._leases.close()
        self._keeper.close()

    @property
    def lost(self) -> bool:
        """Whether some server of the store is out of reach now."""
        servers = self._keeper.topology.servers
        return not servers or any(server.is_lost for server in servers)

    def counts(self) -> dict[str, int]:
        """How often what happened since it was opened."""
        decided = self.lease_table.decided
        shown = self._counts.shown()
        return {
            **shown,
            "decisions": shown["decisions"] + decided,
            "leased": shown["leased"] + decided,
            "dropped": self.arrivals.dropped,
        }

    def decider(self) -> DecisionPlanner:
        """This process's own. A server may fork in C, unseen by Python, so the process is compared on each use."""
        if self.pid != getpid():
            self._restart()
        return self._decider

    def leases(self) -> LeaseSide:
        """This process's own."""
        if self.pid != getpid():
            self._restart()
        return self._leases

    def lease_decider(self) -> LeaseDecider:
        """As `decider`, for permits that are leased."""
        return self.leases().decider

    def wait_for_servers(self, budget: Budget) -> list[Any]:
        """Looked at now and then: it is waited for once in the life of a store."""
        while not self._keeper.has_looked and budget.left > 0:
            time.sleep(LOOK_SECONDS)
            budget.left -= LOOK_SECONDS
        self._keeper.has_looked = True  # in vain? then once is enough
        return []

    async def await_servers(self, budget: Budget) -> list[Any]:
        running_loop()
        while not self._keeper.has_looked and budget.left > 0:
            await asyncio.sleep(LOOK_SECONDS)
            budget.left -= LOOK_SECONDS
        self._keeper.has_looked = True
        return []

    def drive(self, steps: JobSteps[T], budget: Budget | None = None) -> T:
        budget = Budget(self.budget) if budget is None else budget

        def perform(step: Sequence[Job] | WaitForServers) -> list[Any]:
            if isinstance(step, WaitForServers):
                return self.wait_for_servers(budget)
            return send(step, budget)

        return drive(steps, perform)

    def _start(self) -> None:
        """In a forked child anew: the parent's threads, sockets and locks are the parent's."""
        count, deny_cache = self._counts.add, DenyCache()
        fallback = Fallback(self.shares, self._zone, deny_cache.forget)
        prefix = f"{self.namespace}:limit:".encode()

        def publish(id: bytes, meter: CounterSpec) -> None:
            keeper.publish_limit(
                prefix + id, meter
            )  # not by `self`: its thread would keep the store alive

        plans = CounterEncoder(publish)
        refunds = PendingRefunds(deny_cache.forget)
        keeper: TopologyRefresh | ClientKeeper
        if isinstance(self._where, RedisAddress):
            keeper = TopologyRefresh(
                self._where,
                fallback,
                self.shares,
                self.namespace,
                self.budget,
                count,
                deny_cache.clear,
                deny_cache.knows_all,
                plans.forget,
                StoredOverrides(self.namespace, self.overrides, deny_cache.forget),
                self.arrivals,
                refunds,
                None if self._zone is None else self._zone.node,
            )
        else:
            keeper = ClientKeeper(self._where, count, deny_cache.clear, refunds)
        self._keeper = keeper
        self._decider = DecisionPlanner(keeper, plans, deny_cache, fallback, count)
        self._leases = LeaseSide(
            keeper,
            self._terms,
            self.shares,
            fallback,
            self.budget,
            self._counts.add,
            self._zone,
            self._where.place if isinstance(self._where, RedisAddress) else "",
        )
        self.lease_table = self._leases.table
        self._finalizer = weakref.finalize(self, _stop, keeper, self._leases)
        self._restarting = threading.Lock()
        self.pid = getpid()

    def _restart(self) -> None:
        # The lock may be the parent's, held for ever by a thread that is not here; then another thread of this process is the one
        # that restarts, or none is, and it is not waited for.
        restarting = self._restarting
        taken = restarting.acquire(timeout=self.budget)
        if self.pid != getpid():
            self._finalizer.detach()
            self._keeper.abandon()
            self._leases.abandon()
            for name in ("decisions", "leased"):
                self._counts.add(name, self.lease_table.decided)  # up to the fork
            self._start()
        if taken:
            restarting.release()


_stores: weakref.WeakSet[RedisStore] = weakref.WeakSet()


def _let_go_of_parents() -> None:
    """A child holds no connection of its parent, not even until it first asks."""
    for store in list(_stores):
        store._keeper.abandon()
        store._leases.abandon()
    for half_open in list(opening):
        half_open.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_of_parents)


def _stop(keeper: TopologyRefresh | ClientKeeper, leases: LeaseSide) -> None:
    leases.stop()
    keeper.stop()


def _check(namespace: Any, budget_us: Any, nodes: Any, weight: Any) -> None:
    """What a URL or a file says was checked; this may come from code."""
    if namespace is not None:
        namespace_from_spelling(namespace)
    if budget_us is not None and (
        budget_us.__class__ is not int or not 1_000 <= budget_us <= 10_000_000
    ):
        raise ConfigError(
            f"budget_us is {shown(budget_us)}; write microseconds from 1000 to 10000000"
        )
    for name, number in (("nodes", nodes), ("weight", weight)):
        if number is not None and (number.__class__ is not int or number < 1):
            raise ConfigError(f"{name} is {shown(number)}; write a whole number from 1")
