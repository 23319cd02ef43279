"""One limit, by key: `take`, `wait`.

`Limiter` and `AsyncLimiter` are shells around the same parts; they differ by an `await`.
"""

from __future__ import annotations

from typing import Any

from diana.core.charge import Charge, checked_cost
from diana.core.contracts import Clock, Store, Take
from diana.core.decision import Decision, tightest
from diana.core.errors import ConfigError
from diana.core.exchange import adrive, drive
from diana.core.limit import limits_from_spelling
from diana.core.meter import Meter, meter_from_limit
from diana.core.plugins import algorithm_from_spelling
from diana.stores import open_store
from diana.waiting import (
    Ask,
    Lines,
    Queue,
    Sleep,
    Steps,
    TaskTicket,
    ThreadTicket,
    Timer,
    until_allowed,
    until_released,
)

WHEN_DOWN = ("local", "open", "closed")


class _Limits:
    """The limits of one spelling on one store: all that both shells share."""

    def __init__(
        self,
        spelling: str,
        algo: str,
        burst: int | None,
        store: str | Store,
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
        self.store = open_store(store)
        if name is None and (self.store.shared or not self.owned):
            raise ConfigError("others count in this store too; give the limit a name=")
        self.meters = _meters(spelling, algo, burst, name or "limit", options)
        self.clock = clock
        self.lines = Lines()
        one = len(self.meters) == 1
        self.take: Take = self.store.bind(self.meters[0], clock) if one else self._take_all

    def _take_all(self, key: str, cost: int = 1) -> Decision:
        """Charge the key by every limit, or by none; the Decision is true if it may pass."""
        return tightest(self.store.decide(self._charges(key, cost), self._now()))

    def peek(self, key: str, cost: int = 1) -> Decision:
        return tightest(self.store.peek(self._charges(key, cost), self._now()))

    def refund(self, decision: Decision) -> None:
        if decision and decision.cost:
            charges = self._charges(decision.key, decision.cost)
            self.store.refund(charges, decision.at, self._now())

    def reset(self, key: str) -> None:
        for meter in self.meters:
            self.store.reset(meter, key)

    def close(self) -> None:
        if self.owned:
            self.store.close()

    def _charges(self, key: str, cost: int) -> list[Charge]:
        return [Charge(meter, key, cost) for meter in self.meters]

    def _now(self) -> int | None:
        return None if self.clock is None else self.clock()


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
        store: str | Store = "memory://",
        name: str | None = None,
        clock: Clock | None = None,
        when_down: str = "local",
        **algorithm_options: Any,
    ) -> None:
        self._limits = _Limits(limit, algo, burst, store, name, clock, when_down, algorithm_options)
        if type(self).take is Limiter.take:
            self.take = self._limits.take  # type: ignore[method-assign]  # the store's own fast lane

    def take(self, key: str, cost: int = 1) -> Decision:
        """Charge the key; the Decision is true if it may pass."""
        return self._limits.take(key, cost)

    def wait(self, key: str, cost: int = 1, timeout: float | None = None) -> Decision:
        """Take, sleeping as long as needed; past the timeout, the denial at once. First come, first served per key."""
        limits = self._limits
        ticket = ThreadTicket()
        steps = until_allowed(limits.lines, limits.timer, ticket, key, checked_cost(cost), timeout)
        return self._drive(steps)

    def peek(self, key: str) -> Decision:
        """What a charge of 1 would be told now; nothing is written."""
        return self._limits.peek(key)

    def refund(self, decision: Decision) -> None:
        """Take a charge back, as far as it still counts. A denial has nothing to give back."""
        self._limits.refund(decision)

    def reset(self, key: str) -> None:
        """Forget the key."""
        self._limits.reset(key)

    def close(self) -> None:
        """Close the store, if this limiter opened it."""
        self._limits.close()

    def released(self, decision: Decision) -> Decision:
        """Sleep off the delay that a leaky bucket told; nothing to do for others."""
        return self._drive(until_released(decision))

    def _drive(self, steps: Steps[Decision]) -> Decision:
        return drive(steps, self._perform)

    def _perform(self, step: Ask | Sleep | Queue) -> Any:
        match step:
            case Ask(verb, args):
                return getattr(self._limits, verb)(*args)
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
        store: str | Store = "memory://",
        name: str | None = None,
        clock: Clock | None = None,
        when_down: str = "local",
        **algorithm_options: Any,
    ) -> None:
        self._limits = _Limits(limit, algo, burst, store, name, clock, when_down, algorithm_options)

    async def take(self, key: str, cost: int = 1) -> Decision:
        """Charge the key; the Decision is true if it may pass."""
        return self._limits.take(key, cost)

    async def wait(self, key: str, cost: int = 1, timeout: float | None = None) -> Decision:
        """Take, sleeping as long as needed; past the timeout, the denial at once. First come, first served per key."""
        limits = self._limits
        ticket = TaskTicket()
        steps = until_allowed(limits.lines, limits.timer, ticket, key, checked_cost(cost), timeout)
        return await self._drive(steps)

    async def peek(self, key: str) -> Decision:
        """What a charge of 1 would be told now; nothing is written."""
        return self._limits.peek(key)

    async def refund(self, decision: Decision) -> None:
        """Take a charge back, as far as it still counts. A denial has nothing to give back."""
        self._limits.refund(decision)

    async def reset(self, key: str) -> None:
        """Forget the key."""
        self._limits.reset(key)

    async def close(self) -> None:
        """Close the store, if this limiter opened it."""
        self._limits.close()

    async def released(self, decision: Decision) -> Decision:
        """Sleep off the delay that a leaky bucket told; nothing to do for others."""
        return await self._drive(until_released(decision))

    async def _drive(self, steps: Steps[Decision]) -> Decision:
        return await adrive(steps, self._perform)

    async def _perform(self, step: Ask | Sleep | Queue) -> Any:
        match step:
            case Ask(verb, args):
                return getattr(self._limits, verb)(*args)
            case Sleep(seconds):
                return await self._limits.timer.asleep(seconds)
            case Queue(ticket, seconds):
                return await ticket.wait(seconds)


def _meters(
    spelling: str, algo: str, burst: int | None, name: str, options: dict[str, Any]
) -> list[Meter]:
    algorithm = algorithm_from_spelling(algo)
    if burst is not None:
        options = {**options, "burst": burst}
    meters = [
        meter_from_limit(name, limit, algorithm, options)
        for limit in limits_from_spelling(spelling)
    ]
    if len({meter.id for meter in meters}) < len(meters):
        raise ConfigError(f"{spelling!r} limits one unit twice, in one counter; keep the tighter")
    return meters
