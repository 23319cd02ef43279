"""One limit, by key: `take`, `wait`.

`Limiter` and `AsyncLimiter` are shells around the same parts; they differ by an `await`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any

from diana.core.charge import Charge, charged_at, checked_cost
from diana.core.contracts import Algorithm, AsyncStore, AsyncTake, Client, Clock, Store
from diana.core.counter import CounterSpec, escaped, meter_from_limit
from diana.core.decision import Decision, JointDecision, tightest
from diana.core.drive import adrive, drive
from diana.core.duration import micros_from_spelling
from diana.core.errors import ConfigError, DianaError, LimitExceeded
from diana.core.limit import (
    ConcurrencyLimit,
    Limit,
    checked_places,
    limits_from_spelling,
    uses_slots,
)
from diana.runtime.entry_points import algorithm_from_spelling
from diana.slots.slot import (
    AcquiredSlots,
    HeldSlot,
    SlotStore,
    aflush,
    flush,
    place_name,
)
from diana.slots.wait_queue import (
    AwaitTurn,
    LimiterCall,
    Sleep,
    Steps,
    TaskTicket,
    ThreadTicket,
    Timer,
    WaitQueues,
    until_delay_is_over,
    wait_until_allowed,
)
from diana.stores import arefund_of, asynchronous, open_store, refund_of
from diana.stores.adapters import decide_shielded
from diana.stores.zero import ZeroStore

NAMESPACE = "diana"
DEFAULT_ALGO = "TB"
WHEN_DOWN = ("local", "open", "closed")


class _Limits:
    """The limits of one spelling on one store: all that both shells share."""

    def __init__(
        self,
        spelling: str,
        algo: str,
        burst: int | None,
        store: str | Store | Client,
        name: str | None,
        clock: Clock | None,
        when_down: str,
        options: dict[str, Any],
    ) -> None:
        if when_down not in WHEN_DOWN:
            raise ConfigError(f"when_down is {when_down!r}; write one of {', '.join(WHEN_DOWN)}")
        if name is not None and (not isinstance(name, str) or not name):
            raise ConfigError(f"name is {name!r}; write a str that is not empty")
        self.timer = Timer(clock)
        self.owned = isinstance(store, str)
        self.name = name
        self.where = store if isinstance(store, str) else None
        self.store = open_store(store)
        try:
            if name is None and (self.store.shared or not self.owned):
                raise ConfigError("others count in this store too; give the limit a name=")
            named = f"{getattr(self.store, 'namespace', NAMESPACE)}:{escaped(name or 'limit')}"
            self.meters = _meters(spelling, algo, burst, named, when_down, options)
            if any(meter.denies_all for meter in self.meters):
                self.store = ZeroStore(self.store)
        except ConfigError:
            if self.owned:
                self.store.close()
            raise
        self.clock = clock
        self.lines = WaitQueues()
        self.places = None
        if self.uses_slots:
            self.places = SlotStore(self.store, clock, self.lines, self.meters[0])

    @property
    def uses_slots(self) -> bool:
        return uses_slots(self.meters[0].algorithm)

    def line_of(self, key: str) -> str | None:
        """Where one waits for a place of the key; None if there are none."""
        return None if self.places is None else place_name((self.meters[0], key, 1))

    def require_places(self) -> SlotStore:
        if self.places is None:
            raise ConfigError(
                f"{self.meters[0].limit} has no places to give back; write a limit such as '5 at once'"
            )
        return self.places

    def bound_refund(self) -> Callable[[Decision], None] | None:
        """The fast lane for giving a place back; None if the store has none."""
        bind = getattr(self.store, "bind_refund", None)
        if self.places is None or bind is None:
            return None
        meter = self.meters[0]
        give_back, lines = bind(meter, self.clock), self.lines
        algorithm: Any = meter.algorithm
        moment_of, params = algorithm.moment_of, meter.params

        def refund(decision: Decision) -> None:
            """Give the place back, once. A denial has nothing to give back."""
            outcome, _, key, cost, at, _ = decision
            if outcome[0] and cost:
                give_back(key, cost, moment_of(params, outcome, at))
                if lines.are_used:
                    lines.wake(place_name((meter, key, cost)))

        return refund

    def keep_slots(self, decision: Decision) -> AcquiredSlots:
        """The place that was taken, to be renewed and given back."""
        account = self.places or self.require_places()
        outcome, _, key, cost, at, degraded = decision
        if not outcome[0] or not cost:
            return AcquiredSlots([])
        meter = self.meters[0]
        algorithm: Any = meter.algorithm
        moment = algorithm.moment_of(meter.params, outcome, at)
        return AcquiredSlots([HeldSlot(account, (meter, key, cost), moment, degraded)])

    def take_though_cancelled(self, store: AsyncStore, take: AsyncTake) -> AsyncTake:
        """Who is cancelled while the store is asked may have got a place: it is given back."""
        if not hasattr(self.store, "asynchronous"):
            return take
        meter, clock = self.meters[0], self.clock

        async def taking(key: str, cost: int = 1) -> Decision:
            """Charge the key; the Decision is true if it may pass."""
            charges, now = [(meter, key, cost)], clock and clock()
            return (await decide_shielded(store, charges, now, self._give_back))[0]

        return taking

    def _give_back(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            self.keep_slots(decision).release()

    def charges_for(self, key: str, cost: int) -> tuple[list[Charge], int | None]:
        """What a store takes: the charges, and the time if there is a clock of our own."""
        return [Charge(meter, key, cost) for meter in self.meters], self.now()

    def refunds(self, decision: Decision) -> list[tuple[bool, list[Charge], int]]:
        """What a store is to refund: whether it was decided without the server, the charges, and the moment at which they were made."""
        parts: tuple[Decision, ...] = (decision,) * len(self.meters)
        if isinstance(decision, JointDecision) and decision.parts:
            parts = decision.parts
        together: dict[tuple[bool, int], list[Charge]] = {}
        for meter, part in zip(self.meters, parts, strict=True):
            made = part.degraded, charged_at(meter, part)
            charge = Charge(meter, decision.key, decision.cost)
            together.setdefault(made, []).append(charge)
        return [(degraded, charges, at) for (degraded, at), charges in together.items()]

    def now(self) -> int | None:
        return None if self.clock is None else self.clock()

    def shown_as(self, kind: str) -> str:
        """How a limiter looks in a debugger; without what may be secret in a URL."""
        from diana.rules.backends.server_list import shown_url

        limits = "; ".join(str(meter.limit) for meter in self.meters)
        store = type(self.store).__name__ if self.where is None else repr(shown_url(self.where))
        algo = self.meters[0].algorithm.code
        named = "" if self.name is None else f", name={self.name!r}"
        return f"{kind}({limits!r}, algo={algo!r}, store={store}{named})"


class _Slot:
    """A slot of `5 at once`: acquired where `with` begins, released where it ends, and renewed in between."""

    __slots__ = ("_cost", "_held", "_key", "_limiter", "_wait")

    def __init__(self, limiter: Any, key: str, cost: int, wait: float | None) -> None:
        self._limiter = limiter
        self._key = key
        self._cost = cost
        self._wait = wait
        self._held: AcquiredSlots | None = None

    def _begin(self, decision: Decision) -> Decision:
        if not decision.outcome[0]:
            raise LimitExceeded(decision)
        held = self._limiter._limits.keep_slots(decision)
        if self._held is not None:
            held.release()
            raise DianaError(
                "this slot holds a place already; write limiter.slot(key) in each with"
            )
        self._held = held
        return decision

    def _end(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.release()


class Slot(_Slot):
    __slots__ = ()

    def __enter__(self) -> Decision:
        limiter, key, cost, wait = self._limiter, self._key, self._cost, self._wait
        return self._begin(
            limiter.take(key, cost) if wait is None else limiter.wait(key, cost, wait)
        )

    def __exit__(self, *_: object) -> None:
        self._end()


class AsyncSlot(_Slot):
    __slots__ = ()

    async def __aenter__(self) -> Decision:
        limiter, key, cost, wait = self._limiter, self._key, self._cost, self._wait
        if wait is None:
            return self._begin(await limiter.take(key, cost))
        return self._begin(await limiter.wait(key, cost, wait))

    async def __aexit__(self, *_: object) -> None:
        self._end()


class Limiter:
    """`Limiter("100/minute").take("alice")` is true a hundred times a minute.

    A spelling is `N/unit` or `N per 30s`; several joined by `;` hold together, all or nothing. `algo` is TB, LB, W, SW or SL, in letters
    or words; `burst` and the other options are the algorithm's. `N at once` counts how many are inside: see `slot`; its options are `hold`,
    for how long a place is kept for a process that may have died (60s), and `retry`. On a store that others share, `name` is required.
    """

    def __init__(
        self,
        limit: str,
        *,
        algo: str = "TB",
        burst: int | None = None,
        store: str | Store | Client = "memory://",
        name: str | None = None,
        clock: Clock | None = None,
        when_down: str = "local",
        **algorithm_options: Any,
    ) -> None:
        self._limits = _Limits(limit, algo, burst, store, name, clock, when_down, algorithm_options)
        self._store = self._limits.store
        if type(self).take is Limiter.take and len(self._limits.meters) == 1:
            fast_lane = self._store.bind(self._limits.meters[0], clock)
            self.take = fast_lane  # type: ignore[method-assign]
            self.refund = self._limits.bound_refund() or self.refund  # type: ignore[assignment,method-assign]

    def __repr__(self) -> str:
        return self._limits.shown_as("Limiter")

    @property
    def uses_slots(self) -> bool:
        """Whether it counts how many at once, so that what is taken is given back."""
        return self._limits.uses_slots

    def keep_slots(self, decision: Decision) -> AcquiredSlots:
        """`with limiter.keep_slots(decision):` renews the place that `take` took, as long as it is needed, and gives it back."""
        return self._limits.keep_slots(decision)

    def take(self, key: str, cost: int = 1) -> Decision:
        """Charge the key, by every limit or by none; the Decision is true if it may pass."""
        return tightest(self._store.decide(*self._limits.charges_for(key, cost)))

    def wait(self, key: str, cost: int = 1, timeout: float | None = None) -> Decision:
        """Take, sleeping as long as needed; past the timeout, the denial at once. First come, first served per key."""
        limits = self._limits
        ticket = ThreadTicket()
        line = limits.line_of(key)
        steps = wait_until_allowed(
            limits.lines, limits.timer, ticket, key, checked_cost(cost), timeout, line
        )
        return self._drive(steps)

    @contextmanager
    def require(self, key: str, cost: int = 1, timeout: float | None = None) -> Iterator[Decision]:
        """`with limiter.require("alice"):` takes, or raises LimitExceeded; with a timeout it waits that long first. Async: `async with`."""
        if timeout is None:
            decision = self.sleep_delay(self.take(key, cost))
        else:
            decision = self.wait(key, cost, timeout)
        if not decision:
            raise LimitExceeded(decision)
        with self.keep_slots(decision) if self._limits.uses_slots else nullcontext():
            yield decision

    def slot(self, key: str, cost: int = 1, *, wait: float | None = None) -> Slot:
        """`with limiter.slot("alice"):` takes a place of `5 at once`, or raises LimitExceeded, and gives it back. Async: `async with`.

        `wait`: seconds to wait for one, first come, first served per key. It is renewed as long as it is needed.
        """
        self._limits.require_places()
        return Slot(self, key, cost, wait)

    def peek(self, key: str) -> Decision:
        """What a charge of 1 would be told now; nothing is written."""
        return self._peek(key, 1)

    def refund(self, decision: Decision) -> None:
        """Take a charge back, as far as it still counts. A denial has nothing to give back."""
        if decision and decision.cost:
            now = self._limits.now()
            for degraded, charges, at in self._limits.refunds(decision):
                refund_of(self._store, degraded=degraded)(charges, at, now)
            self._limits.lines.wake(self._limits.line_of(decision.key) or "")

    def reset(self, key: str) -> None:
        """Forget the key."""
        for meter in self._limits.meters:
            self._store.reset(meter, key)

    def close(self) -> None:
        """Close the store, if this limiter opened it."""
        if self._limits.owned:
            if self._limits.uses_slots:
                flush()
            self._store.close()

    def sleep_delay(self, decision: Decision) -> Decision:
        """Sleep off the delay that a leaky bucket told; nothing to do for others."""
        return self._drive(until_delay_is_over(decision))

    def _peek(self, key: str, cost: int) -> Decision:
        return tightest(self._store.peek(*self._limits.charges_for(key, cost)))

    def _drive(self, steps: Steps[Decision]) -> Decision:
        return drive(steps, self._perform)

    def _perform(self, step: LimiterCall | Sleep | AwaitTurn) -> Any:
        match step:
            case LimiterCall(verb, args):
                return getattr(self, verb)(*args)
            case Sleep(seconds):
                return self._limits.timer.sleep(seconds)
            case AwaitTurn(ticket, seconds):
                return ticket.wait(seconds)


class AsyncLimiter:
    """`Limiter` for coroutines: `if await limiter.take("alice"): …`."""

    def __init__(
        self,
        limit: str,
        *,
        algo: str = "TB",
        burst: int | None = None,
        store: str | Store | Client = "memory://",
        name: str | None = None,
        clock: Clock | None = None,
        when_down: str = "local",
        **algorithm_options: Any,
    ) -> None:
        self._limits = _Limits(limit, algo, burst, store, name, clock, when_down, algorithm_options)
        self._store = asynchronous(self._limits.store)
        if type(self).take is AsyncLimiter.take and len(self._limits.meters) == 1:
            fast_lane = self._store.bind(self._limits.meters[0], clock)
            if self._limits.uses_slots:
                fast_lane = self._limits.take_though_cancelled(self._store, fast_lane)
            self.take = fast_lane  # type: ignore[assignment,method-assign]

    def __repr__(self) -> str:
        return self._limits.shown_as("AsyncLimiter")

    @property
    def uses_slots(self) -> bool:
        """Whether it counts how many at once, so that what is taken is given back."""
        return self._limits.uses_slots

    def keep_slots(self, decision: Decision) -> AcquiredSlots:
        """`with limiter.keep_slots(decision):` renews the place that `take` took, as long as it is needed, and gives it back."""
        return self._limits.keep_slots(decision)

    async def take(self, key: str, cost: int = 1) -> Decision:
        """Charge the key, by every limit or by none; the Decision is true if it may pass."""
        return tightest(await self._store.decide(*self._limits.charges_for(key, cost)))

    async def wait(self, key: str, cost: int = 1, timeout: float | None = None) -> Decision:
        """Take, sleeping as long as needed; past the timeout, the denial at once. First come, first served per key."""
        limits = self._limits
        ticket = TaskTicket()
        line = limits.line_of(key)
        steps = wait_until_allowed(
            limits.lines, limits.timer, ticket, key, checked_cost(cost), timeout, line
        )
        return await self._drive(steps)

    @asynccontextmanager
    async def require(
        self, key: str, cost: int = 1, timeout: float | None = None
    ) -> AsyncIterator[Decision]:
        """`with limiter.require("alice"):` takes, or raises LimitExceeded; with a timeout it waits that long first. Async: `async with`."""
        if timeout is None:
            decision = await self.sleep_delay(await self.take(key, cost))
        else:
            decision = await self.wait(key, cost, timeout)
        if not decision:
            raise LimitExceeded(decision)
        with self.keep_slots(decision) if self._limits.uses_slots else nullcontext():
            yield decision

    def slot(self, key: str, cost: int = 1, *, wait: float | None = None) -> AsyncSlot:
        """`with limiter.slot("alice"):` takes a place of `5 at once`, or raises LimitExceeded, and gives it back. Async: `async with`.

        `wait`: seconds to wait for one, first come, first served per key. It is renewed as long as it is needed.
        """
        self._limits.require_places()
        return AsyncSlot(self, key, cost, wait)

    async def peek(self, key: str) -> Decision:
        """What a charge of 1 would be told now; nothing is written."""
        return await self._peek(key, 1)

    async def refund(self, decision: Decision) -> None:
        """Take a charge back, as far as it still counts. A denial has nothing to give back."""
        if decision and decision.cost:
            now = self._limits.now()
            for degraded, charges, at in self._limits.refunds(decision):
                await arefund_of(self._store, degraded=degraded)(charges, at, now)
            self._limits.lines.wake(self._limits.line_of(decision.key) or "")

    async def reset(self, key: str) -> None:
        """Forget the key."""
        for meter in self._limits.meters:
            await self._store.reset(meter, key)

    async def close(self) -> None:
        """Close the store, if this limiter opened it."""
        if self._limits.owned:
            if self._limits.uses_slots:
                await aflush()
            await self._store.close()

    async def sleep_delay(self, decision: Decision) -> Decision:
        """Sleep off the delay that a leaky bucket told; nothing to do for others."""
        return await self._drive(until_delay_is_over(decision))

    async def _peek(self, key: str, cost: int) -> Decision:
        return tightest(await self._store.peek(*self._limits.charges_for(key, cost)))

    async def _drive(self, steps: Steps[Decision]) -> Decision:
        return await adrive(steps, self._perform)

    async def _perform(self, step: LimiterCall | Sleep | AwaitTurn) -> Any:
        match step:
            case LimiterCall(verb, args):
                return await getattr(self, verb)(*args)
            case Sleep(seconds):
                return await self._limits.timer.asleep(seconds)
            case AwaitTurn(ticket, seconds):
                return await ticket.wait(seconds)


def _meters(
    spelling: str,
    algo: str,
    burst: int | None,
    name: str,
    when_down: str,
    options: dict[str, Any],
) -> list[CounterSpec]:
    algorithm = algorithm_from_spelling(algo)
    if burst is not None:
        options = {**options, "burst": burst}
    limits = limits_from_spelling(spelling)
    if any(isinstance(limit, ConcurrencyLimit) for limit in limits) or uses_slots(algorithm):
        return [_meter_of_places(spelling, limits, algorithm, name, when_down, options)]
    meters = [meter_from_limit(name, limit, algorithm, options, when_down) for limit in limits]
    if len({meter.id for meter in meters}) < len(meters):
        raise ConfigError(f"{spelling!r} limits one unit twice, in one counter; keep the tighter")
    return meters


def _meter_of_places(
    spelling: str,
    limits: list[Limit],
    algorithm: Algorithm,
    name: str,
    when_down: str,
    options: dict[str, Any],
) -> CounterSpec:
    """`5 at once` is concurrency, unless another algorithm that holds places is named."""
    if len(limits) > 1:
        raise ConfigError(
            f"{spelling!r} counts how many at once beside something else; make two limiters, and nest them"
        )
    if not isinstance(limits[0], ConcurrencyLimit):
        said = f"{algorithm.spelling} ({algorithm.code}) counts how many at once"
        raise ConfigError(
            f"{said}, not how often; write '{limits[0].rpu} at once' instead of {spelling!r}"
        )
    if not uses_slots(algorithm):
        if algorithm.code != DEFAULT_ALGO:
            raise ConfigError(
                f"{algorithm.spelling} ({algorithm.code}) counts how often, not how many at once; remove algo"
            )
        algorithm = algorithm_from_spelling("C")
    hold = options.get("hold")
    if hold is not None and not isinstance(hold, str):
        raise ConfigError(f"hold is {hold!r}; write a duration such as 60s", path="hold")
    hold_us = limits[0].unit_us if hold is None else micros_from_spelling(hold)
    others = {option: value for option, value in options.items() if option != "hold"}
    for unasked in ("max_wait", "max_waiting"):
        if unasked in others:
            raise ConfigError(
                f"{unasked} is for rules; a limiter waits when asked: slot(key, wait=2)"
            )
    return meter_from_limit(
        name, checked_places(limits[0].rpu, hold_us), algorithm, others, when_down
    )
