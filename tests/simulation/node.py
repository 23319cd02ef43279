"""A process of the fleet: the real guard, leases, membership, circuit breaker and fallback, with events instead of threads and sockets."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from diana import AsyncGuard, Policy, Request, Verdict
from diana.core.charge import Charges
from diana.core.contracts import Clock, Take
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.drive import adrive
from diana.core.node_share import Share, Shares, share_without_registry
from diana.core.settings import LeaseTerms
from diana.redis_client.circuit_breaker import Breaker
from diana.redis_client.redis_url import Endpoint
from diana.redis_client.reply_errors import BudgetExceeded, Failure
from diana.redis_client.time_budget import Budget
from diana.runtime.throttled_log import ThrottledLog
from diana.stores.redis.cluster_routing import JobSteps, WaitForServers
from diana.stores.redis.deny_cache import DenyCache
from diana.stores.redis.dispatch import ExchangeJob, Job
from diana.stores.redis.leases.lease import Lease
from diana.stores.redis.leases.lease_misses import LeaseDecider
from diana.stores.redis.leases.lease_request import LeaseRequest, WireLimits, ask_pool
from diana.stores.redis.leases.lease_table import LeaseTable
from diana.stores.redis.leases.zone_lease import ZoneLeaseTable
from diana.stores.redis.local_fallback import Fallback
from diana.stores.redis.maintenance.heartbeat import Membership
from diana.stores.redis.pending_refunds import PendingRefunds
from diana.stores.redis.protocol.commands import Exchange
from diana.stores.redis.protocol.wire_format import CounterEncoder
from tests.simulation.store import SimulatedStore
from tests.simulation.world import BEGIN_US, Network, World
from tests.simulation.zone import SimulatedZone

BUDGET_US = 50_000
BEAT_US = 1_000_000
PROBE_US = 100_000

Jobs = Sequence[Job]

T = TypeVar("T")


class Admission(NamedTuple):
    at_us: int
    """By the world's clock."""
    node: str
    degraded: bool
    lost_reply: bool = False
    """The node reached the store, but of this one it does not know what became."""


class Outage(NamedTuple):
    """Of one node: its circuit breaker was open."""

    begin_us: int
    end_us: int


class Awaited:
    """What a coroutine of the guard waits for; the world answers."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs

    def __await__(self) -> Generator[Awaited, list[Any], list[Any]]:
        return (yield self)


class WorldClock:
    """Where a real node estimates what time it is at the server."""

    def __init__(self, store: SimulatedStore) -> None:
        self._store = store

    def at(self, _: int) -> int:
        return self._store.now + BUDGET_US

    def hear(self, server_us: int, sent_us: int) -> None: ...

    def forget(self) -> None: ...


class SimulatedServer:
    """As a node sees it."""

    def __init__(self, node: Node) -> None:
        self.clock = WorldClock(node.store)
        self.breaker = Breaker(
            Endpoint("store", 1),
            Silent(),
            node.count,
            node.begin_outage,
            lambda: None,
            node.seconds,
        )

    @property
    def is_lost(self) -> bool:
        return self.breaker.is_open

    def fail(self, failure: Failure) -> None:
        self.breaker.open(failure)


class Silent(ThrottledLog):
    def warn(self, message: str) -> None:
        """Thousands of worlds would have much to say."""


class OneServer:
    """The topology, and the keeper of it."""

    has_slots = False
    settles = True
    has_looked = True

    def __init__(self, server: SimulatedServer) -> None:
        self.topology = self
        self.servers = (server,)
        self.refunds = PendingRefunds(lambda _: None)

    def server_of_slot(self, _: int) -> SimulatedServer:
        return self.servers[0]

    def server_at(self, _: str) -> None: ...

    def ensure(self) -> None: ...

    def look_around(self) -> None: ...


class SimulatedSide:
    """A store as the guard asks it, from coroutines."""

    shared = True

    def __init__(self, node: Node) -> None:
        self._node = node
        self.shares = node.shares
        self.asynchronous = self
        self.leased = self

    def bind(self, meter: CounterSpec, clock: Clock | None = None) -> Take:
        raise NotImplementedError

    async def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        at_hand = self._node.decider.table.at_hand(charges)
        if at_hand is not None:
            return at_hand
        return await self._drive(self._node.decider.decide(charges, now))

    async def refund(self, charges: Charges, at: int, now: int | None = None) -> None:
        await self._drive(self._node.decider.refund(charges, at, now))

    async def refund_here(self, charges: Charges, at: int, now: int | None = None) -> None:
        await self._drive(self._node.decider.refund(charges, at, now, here=True))

    async def close(self) -> None: ...

    async def _drive(self, steps: JobSteps[T]) -> T:
        async def perform(step: Jobs | WaitForServers) -> list[Any]:
            return [] if isinstance(step, WaitForServers) else await Awaited(step)

        return await adrive(steps, perform)


class Node:
    def __init__(
        self,
        name: str,
        world: World,
        store: SimulatedStore,
        network: Network,
        policy: Policy,
        nodes: int,
        offset_us: int,
        drift_ppm: int,
        zone: SimulatedZone | None = None,
    ) -> None:
        """With a zone, it is one process of several that are a node together."""
        self.name = name
        self.world = world
        self.store = store
        self.network = network
        self.counts: dict[str, int] = {}
        self.history: list[Admission] = []
        self.arrivals: list[int] = []
        """When it was asked."""
        self.outages: list[Outage] = []
        self.is_dead = False
        self._stands_still_until = 0
        self._lost_at_us: int | None = None
        self._offset_us = offset_us
        self._drift_ppm = drift_ppm
        self._refills_at: int | None = None
        self.shares = Shares(share_without_registry(1, nodes))
        self._server = SimulatedServer(self)
        self._fallback = Fallback(self.shares, zone)
        keeper: Any = OneServer(self._server)
        self.membership = Membership("sim")
        self.membership.id = zone.node if zone is not None else name
        self.decider = LeaseDecider(
            keeper, CounterEncoder(lambda *_: None), DenyCache(), self._fallback, self.count
        )
        self.decider.limits = WireLimits()
        self.decider.wall = self.wall_us
        self.decider.table = self._table(zone)
        side: Any = SimulatedSide(self)
        self.guard = AsyncGuard(policy, side)
        self._beat()

    def _table(self, zone: SimulatedZone | None) -> LeaseTable:
        def wake() -> None:
            self._refill_in(self._thinking_us())

        def learn(key: bytes, used: int) -> None:
            self._fallback.learn(key, used, self.wall_us())

        if zone is None:
            clock_ns = lambda: 1_000 * self.clock()  # noqa: E731
            return LeaseTable(self.name, LeaseTerms(), self.shares, wake, learn, clock_ns)
        zone.now_us = self.clock  # it is the machine's
        return ZoneLeaseTable(zone, "store", LeaseTerms(), self.shares, wake, learn)

    def clock(self) -> int:
        """Its own, in µs: it began somewhere, and is a little fast or slow."""
        return self.clock_at(self.world.now)

    def clock_at(self, at_us: int) -> int:
        """What it showed at that moment of the world."""
        return self._offset_us + at_us + at_us * self._drift_ppm // 1_000_000

    def seconds(self) -> float:
        return self.clock() / 1_000_000

    def wall_us(self) -> int:
        return BEGIN_US + self.clock()

    def count(self, name: str, number: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + number

    def edit(self, policy: Policy) -> None:
        self.guard._evaluator.swap(policy)

    def request(self, request: Request, refund_after_us: int | None = None) -> None:
        self._when_it_runs(lambda: self._advance(self._handle(request, refund_after_us), None))

    def die(self) -> None:
        """Between two instructions: nothing that it waits for ever comes."""
        self.is_dead = True
        self.end_outage()

    def was_alone(self, at_us: int) -> bool:
        return any(begin_us <= at_us < end_us for begin_us, end_us in self.outages)

    def begin_outage(self) -> None:
        self._lost_at_us = self.world.now

    def end_outage(self) -> None:
        """It is back at the store; or nothing more is asked of it."""
        if self._lost_at_us is not None:
            self.outages.append(Outage(self._lost_at_us, self.world.now))
            self._lost_at_us = None

    def stand_still(self, for_us: int) -> None:
        """As under SIGSTOP: what comes meanwhile is looked at afterwards."""
        self._stands_still_until = self.world.now + for_us

    def _when_it_runs(self, act: Callable[[], None]) -> None:
        """In the order in which things came."""
        if self.world.now < self._stands_still_until:
            self.world.after(
                self._stands_still_until - self.world.now, lambda: self._when_it_runs(act)
            )
        else:
            act()

    async def _handle(self, request: Request, refund_after_us: int | None) -> None:
        self.arrivals.append(self.world.now)
        asked = self.world.now
        verdict = await self.guard.check(request)
        if not verdict:
            return
        (decision,) = verdict.decisions
        at_us = self.world.now
        if at_us > asked and not decision.degraded:
            at_us = decision.at - BEGIN_US  # the store decided it, and the reply took its time
        lost_reply = decision.degraded and not self._server.is_lost
        if lost_reply:
            self.count("lost replies")
        admission = Admission(at_us, self.name, decision.degraded, lost_reply)
        self.history.append(admission)
        if refund_after_us is not None:
            self.world.after(refund_after_us, lambda: self._refund(verdict, admission))

    def _refund(self, verdict: Verdict, admission: Admission) -> None:
        """Who was charged and got nothing for it was not admitted."""
        if not self.is_dead:
            self.history.remove(admission)
            self._advance(self.guard.refund(verdict), None)

    def _advance(self, work: Coroutine[Awaited, list[Any], None], answers: Any) -> None:
        if self.is_dead:
            work.close()
            return
        try:
            awaited = work.send(answers)
        except StopIteration:
            return
        self._perform(awaited.jobs, lambda told: self._advance(work, told))

    def _perform(self, jobs: Jobs, done: Callable[[list[Any]], None]) -> None:
        """All side by side; `done` when the last has answered, or its time is over."""
        answers: list[Any] = [None] * len(jobs)
        left = len(jobs)

        def answered(place: int) -> Callable[[Any], None]:
            def note(answer: Any) -> None:
                nonlocal left
                answers[place], left = answer, left - 1
                if not left:
                    done(answers)

            return note

        for place, job in enumerate(jobs):
            assert isinstance(job, ExchangeJob)
            self.exchange(job.exchange(Budget(BUDGET_US / 1_000_000)), answered(place))
        if not jobs:
            done([])

    def exchange(self, steps: Exchange, done: Callable[[Any], None]) -> None:
        """Say one thing after the other to the store, within the budget."""
        sent = self.seconds()
        is_over = False

        def finish(answer: Any) -> None:
            nonlocal is_over
            if is_over or self.is_dead:
                return
            is_over = True
            breaker = self._server.breaker
            if isinstance(answer, Failure):
                breaker.note(answer, sent)
            else:
                breaker.hear(self.seconds())
                breaker.answered()
            done(answer)

        def step(reply: Any) -> None:
            if is_over or self.is_dead:
                return
            try:
                command = steps.send(reply)
            except StopIteration as ended:
                finish(ended.value)
                return
            except Failure as failure:
                finish(failure)
                return
            self.count("trips")
            self.network.carry(lambda: self._at_store(command.words, step))

        def ask_on_second_connection() -> None:
            """As the background thread does when half the budget is over."""
            breaker = self._server.breaker
            if not (is_over or self.is_dead):
                breaker.suspect(sent)
                hear = self._when_it_runs
                self.network.carry(
                    lambda: self.network.carry(lambda: hear(lambda: breaker.hear(self.seconds())))
                )

        step(None)
        self.world.after(BUDGET_US // 2, ask_on_second_connection)
        overrun = BudgetExceeded(proves_silence=True)
        self.world.after(BUDGET_US, lambda: self._when_it_runs(lambda: finish(overrun)))

    def _at_store(self, words: tuple[Any, ...], reply: Callable[[Any], None]) -> None:
        answer = self.store.execute(self.name, words)
        self.network.carry(lambda: self._when_it_runs(lambda: reply(answer)))

    def _thinking_us(self) -> int:
        """Until the thread that asks ahead of need gets the processor."""
        return self.world.chance.choice((50, 200, 1_000, 5_000))

    def _refill_in(self, delay_us: int) -> None:
        due = self.world.now + delay_us
        if self._refills_at is None or due < self._refills_at:
            self._refills_at = due
            self.world.after(delay_us, lambda: self._when_it_runs(lambda: self._refill(due)))

    def _refill(self, due: int) -> None:
        if self.is_dead or self._refills_at != due:
            return
        self._refills_at = None
        asks, pause_us = self.decider.table.due()
        for lease, ask in asks:
            self._ask(lease, ask)
        self._refill_in(pause_us)

    def _ask(self, lease: Lease, ask: LeaseRequest) -> None:
        table = self.decider.table
        if self._server.is_lost:
            table.lose(lease, ask)
            return
        clock: Any = self._server.clock
        steps = ask_pool(
            self.decider.limits, clock, lease.wire_key, lease.meter, ask, None, Budget(0.05)
        )

        def done(answer: Any) -> None:
            if isinstance(answer, Failure):
                table.lose(lease, ask)
            else:
                at, grant = answer
                table.settle(lease, ask, grant, at)
                self._refill_in(1_000)

        self.exchange(steps, done)

    def _beat(self) -> None:
        """The heartbeat; and while the store is lost, the probe that finds it again."""
        if self.is_dead:
            return

        def heard(answer: Any) -> None:
            if isinstance(answer, Failure):
                return
            self.shares.share = Share(1, max(1, answer.weight))
            if self._server.is_lost:
                self._settle()

        self.exchange(self.membership.beat(), heard)
        self.world.after(PROBE_US if self._server.is_lost else BEAT_US, self._beat)

    def _settle(self) -> None:
        """It answers again: first what was admitted without it."""
        clock: Any = self._server.clock
        step = self._fallback.settle(clock, lambda _: True, lambda _: 0, 1.0)
        self._server.breaker.close()
        self.end_outage()
        if step is not None:
            for exchange in step[0]:
                self.exchange(exchange, lambda _: None)
