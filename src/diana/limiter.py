"""One limit, by key: `take`, `wait`.

`Limiter` and `AsyncLimiter` are shells around the same parts; they differ by an `await`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from diana.core.charge import Charge, checked_cost
from diana.core.contracts import Client, Clock, Store
from diana.core.decision import Decision, tightest
from diana.core.errors import ConfigError, LimitExceeded
from diana.core.exchange import adrive, drive
from diana.core.limit import limits_from_spelling
from diana.core.meter import Meter, escaped, meter_from_limit
from diana.core.plugins import algorithm_from_spelling
from diana.stores import asynchronous, open_store, refund_verb
from diana.waiting import (
    LimiterCall,
    Lines,
    Queue,
    Sleep,
    Steps,
    TaskTicket,
    ThreadTicket,
    Timer,
    until_allowed,
    until_delay_is_over,
)

NAMESPACE = "diana"
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
        except ConfigError:
            if self.owned:
                self.store.close()
            raise
        self.clock = clock
        self.lines = Lines()

    def charges_for(self, key: str, cost: int) -> tuple[list[Charge], int | None]:
        """What a store takes: the charges, and the time if there is a clock of our own."""
        return [Charge(meter, key, cost) for meter in self.meters], self.now()

    def now(self) -> int | None:
        return None if self.clock is None else self.clock()

    def shown_as(self, kind: str) -> str:
        """How a limiter looks in a debugger; without what may be secret in a URL."""
        from diana.sources.places.address import shown_url

        limits = "; ".join(str(meter.limit) for meter in self.meters)
        store = type(self.store).__name__ if self.where is None else repr(shown_url(self.where))
        algo = self.meters[0].algorithm.code
        named = "" if self.name is None else f", name={self.name!r}"
        return f"{kind}({limits!r}, algo={algo!r}, store={store}{named})"


class Limiter:
    """`Limiter("100/minute").take("alice")` is true a hundred times a minute.

    A spelling is `N/unit` or `N per 30s`; several joined by `;` hold together, all or nothing. `algo` is TB, LB, W, SW or SL, in letters
    or words; `burst` and the other options are the algorithm's. On a store that others share, `name` is required.
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

    def __repr__(self) -> str:
        return self._limits.shown_as("Limiter")

    def take(self, key: str, cost: int = 1) -> Decision:
        """Charge the key, by every limit or by none; the Decision is true if it may pass."""
        return tightest(self._store.decide(*self._limits.charges_for(key, cost)))

    def wait(self, key: str, cost: int = 1, timeout: float | None = None) -> Decision:
        """Take, sleeping as long as needed; past the timeout, the denial at once. First come, first served per key."""
        limits = self._limits
        ticket = ThreadTicket()
        steps = until_allowed(limits.lines, limits.timer, ticket, key, checked_cost(cost), timeout)
        return self._drive(steps)

    @contextmanager
    def hold(self, key: str, cost: int = 1, timeout: float | None = None) -> Iterator[Decision]:
        """`with limiter.hold("alice"):` takes, or raises LimitExceeded; with a timeout it waits that long first. Async: `async with`."""
        if timeout is None:
            decision = self.wait_out(self.take(key, cost))
        else:
            decision = self.wait(key, cost, timeout)
        if not decision:
            raise LimitExceeded(decision)
        yield decision

    def peek(self, key: str) -> Decision:
        """What a charge of 1 would be told now; nothing is written."""
        return self._peek(key, 1)

    def refund(self, decision: Decision) -> None:
        """Take a charge back, as far as it still counts. A denial has nothing to give back."""
        if decision and decision.cost:
            charges, now = self._limits.charges_for(decision.key, decision.cost)
            refund = getattr(self._store, refund_verb(decision))
            refund(charges, decision.at, now)

    def reset(self, key: str) -> None:
        """Forget the key."""
        for meter in self._limits.meters:
            self._store.reset(meter, key)

    def close(self) -> None:
        """Close the store, if this limiter opened it."""
        if self._limits.owned:
            self._store.close()

    def wait_out(self, decision: Decision) -> Decision:
        """Sleep off the delay that a leaky bucket told; nothing to do for others."""
        return self._drive(until_delay_is_over(decision))

    def _peek(self, key: str, cost: int) -> Decision:
        return tightest(self._store.peek(*self._limits.charges_for(key, cost)))

    def _drive(self, steps: Steps[Decision]) -> Decision:
        return drive(steps, self._perform)

    def _perform(self, step: LimiterCall | Sleep | Queue) -> Any:
        match step:
            case LimiterCall(verb, args):
                return getattr(self, verb)(*args)
            case Sleep(seconds):
                return self._limits.timer.sleep(seconds)
            case Queue(ticket, seconds):
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
            self.take = fast_lane  # type: ignore[assignment,method-assign]

    def __repr__(self) -> str:
        return self._limits.shown_as("AsyncLimiter")

    async def take(self, key: str, cost: int = 1) -> Decision:
        """Charge the key, by every limit or by none; the Decision is true if it may pass."""
        return tightest(await self._store.decide(*self._limits.charges_for(key, cost)))

    async def wait(self, key: str, cost: int = 1, timeout: float | None = None) -> Decision:
        """Take, sleeping as long as needed; past the timeout, the denial at once. First come, first served per key."""
        limits = self._limits
        ticket = TaskTicket()
        steps = until_allowed(limits.lines, limits.timer, ticket, key, checked_cost(cost), timeout)
        return await self._drive(steps)

    @asynccontextmanager
    async def hold(
        self, key: str, cost: int = 1, timeout: float | None = None
    ) -> AsyncIterator[Decision]:
        """`with limiter.hold("alice"):` takes, or raises LimitExceeded; with a timeout it waits that long first. Async: `async with`."""
        if timeout is None:
            decision = await self.wait_out(await self.take(key, cost))
        else:
            decision = await self.wait(key, cost, timeout)
        if not decision:
            raise LimitExceeded(decision)
        yield decision

    async def peek(self, key: str) -> Decision:
        """What a charge of 1 would be told now; nothing is written."""
        return await self._peek(key, 1)

    async def refund(self, decision: Decision) -> None:
        """Take a charge back, as far as it still counts. A denial has nothing to give back."""
        if decision and decision.cost:
            charges, now = self._limits.charges_for(decision.key, decision.cost)
            refund = getattr(self._store, refund_verb(decision))
            await refund(charges, decision.at, now)

    async def reset(self, key: str) -> None:
        """Forget the key."""
        for meter in self._limits.meters:
            await self._store.reset(meter, key)

    async def close(self) -> None:
        """Close the store, if this limiter opened it."""
        if self._limits.owned:
            await self._store.close()

    async def wait_out(self, decision: Decision) -> Decision:
        """Sleep off the delay that a leaky bucket told; nothing to do for others."""
        return await self._drive(until_delay_is_over(decision))

    async def _peek(self, key: str, cost: int) -> Decision:
        return tightest(await self._store.peek(*self._limits.charges_for(key, cost)))

    async def _drive(self, steps: Steps[Decision]) -> Decision:
        return await adrive(steps, self._perform)

    async def _perform(self, step: LimiterCall | Sleep | Queue) -> Any:
        match step:
            case LimiterCall(verb, args):
                return await getattr(self, verb)(*args)
            case Sleep(seconds):
                return await self._limits.timer.asleep(seconds)
            case Queue(ticket, seconds):
                return await ticket.wait(seconds)


def _meters(
    spelling: str,
    algo: str,
    burst: int | None,
    name: str,
    when_down: str,
    options: dict[str, Any],
) -> list[Meter]:
    algorithm = algorithm_from_spelling(algo)
    if burst is not None:
        options = {**options, "burst": burst}
    meters = [
        meter_from_limit(name, limit, algorithm, options, when_down)
        for limit in limits_from_spelling(spelling)
    ]
    if len({meter.id for meter in meters}) < len(meters):
        raise ConfigError(f"{spelling!r} limits one unit twice, in one counter; keep the tighter")
    return meters
