"""One limit, by key: `take`, `wait`.

`Limiter` and `AsyncLimiter` are shells around the same parts; they differ by an `await`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any

from diana.core.charge import checked_cost
from diana.core.contracts import Client, Clock, Store
from diana.core.decision import Decision, tightest
from diana.core.drive import adrive, drive
from diana.core.errors import DianaError, LimitExceeded
from diana.engine.limiter_parts import LimiterParts
from diana.slots.acquired_slots import AcquiredSlots
from diana.slots.slot_renewer import aflush, flush
from diana.slots.wait_queue import (
    AwaitTurn,
    LimiterCall,
    Sleep,
    Steps,
    TaskTicket,
    ThreadTicket,
    until_delay_is_over,
    wait_until_allowed,
)
from diana.stores import arefund_of, asynchronous, refund_of


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
        self._limits = LimiterParts(
            limit, algo, burst, store, name, clock, when_down, algorithm_options
        )
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
        self._limits = LimiterParts(
            limit, algo, burst, store, name, clock, when_down, algorithm_options
        )
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
