"""Waiting until a limit lets pass: first come, first served, per key, with no lock held while asleep.

`wait_until_allowed` is a generator that yields what to do next: ask the limiter, stand in line, sleep. It knows no threads and no event
loop; the limiters' shells do what it says, one with and one without `await`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from math import inf
from os import getpid
from typing import Any, NamedTuple, Protocol, TypeVar

from diana.core.contracts import Clock
from diana.core.decision import UNKNOWN, Decision
from diana.core.errors import DianaError, TimeoutValueError
from diana.runtime.clock import checked_clock, wall_us

T = TypeVar("T")

LONGEST_PATIENCE = 1e6
"""Seconds; who waits longer waits as long as it takes. Threads cannot be told to wait for ever so long."""


SHORTEST_LOOK, LONGEST_LOOK = 0.005, 0.25
"""Seconds between two looks for a place."""


class LimiterCall(NamedTuple):
    """Call a method of the limiter; its answer is sent back."""

    verb: str
    args: tuple[Any, ...]


class Sleep(NamedTuple):
    seconds: float


class AwaitTurn(NamedTuple):
    """Stand in line until the ticket is called; sends back whether it was in time."""

    ticket: Ticket
    seconds: float | None


Steps = Generator[LimiterCall | Sleep | AwaitTurn, Any, T]


class Ticket(Protocol):
    """Shells bring their own: a thread waits otherwise than a task."""

    def call(self) -> bool:
        """The ticket is first in its line; False if its waiter is gone."""

    def wait(self, seconds: float | None) -> Any:
        """Whether it was called in time; for a task, something to await."""


class ThreadTicket:
    def __init__(self) -> None:
        # By its name in the module, like `time.sleep`: gevent may have patched it after this was imported.
        self._called = threading.Event()
        self.wait = self._called.wait

    def call(self) -> bool:
        self._called.set()
        return True


class TaskTicket:
    def __init__(self) -> None:
        import asyncio

        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            raise DianaError(
                "wait needs a running asyncio event loop; trio and curio have none: use the synchronous Limiter in a thread"
            ) from None
        self._called: asyncio.Future[None] = self._loop.create_future()

    def call(self) -> bool:
        # The one before may run in another thread's loop, and this one's may be closed.
        try:
            self._loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:
            return False
        return True

    def _resolve(self) -> None:
        if not self._called.done():
            self._called.set_result(None)

    async def wait(self, seconds: float | None) -> bool:
        import asyncio

        await asyncio.wait({self._called}, timeout=seconds)
        return self._called.done()


class WaitQueues:
    """One line per key, there only while a ticket stands in it.

    Each process has its own: the waiters of a parent are not in its child, and would never leave. A server may fork in C, unseen by
    Python, so the process is compared on each use.
    """

    def __init__(self) -> None:
        self._of_process: dict[int, _ProcessLines] = {}

    def join(self, key: str, ticket: Ticket) -> bool:
        """Whether the ticket is the first in its line."""
        return self._own().join(key, ticket)

    def leave(self, key: str, ticket: Ticket) -> None:
        self._own().leave(key, ticket)

    def length(self, key: str) -> int:
        """How many stand in it."""
        return self._own().length(key)

    @property
    def are_used(self) -> bool:
        """Whether somebody has ever waited here."""
        return bool(self._of_process)

    def __bool__(self) -> bool:
        """Whether there is any line."""
        return bool(self._of_process) and bool(self._own())

    def watch(self, key: str, ticket: Ticket) -> None:
        """The ticket is called with the next `wake` of its key."""
        self._own().watch(key, ticket)

    def wake(self, key: str) -> None:
        """A place of this key is free again."""
        self._own().wake(key)

    def _own(self) -> _ProcessLines:
        pid = getpid()
        own = self._of_process.get(pid)
        if own is None:
            # In one step, so that two threads of a new process get the same.
            own = self._of_process.setdefault(pid, _ProcessLines())
            for other in [known for known in list(self._of_process) if known != pid]:
                self._of_process.pop(other, None)
        return own


class _ProcessLines:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[str, deque[Ticket]] = {}
        self._watching: dict[str, list[Ticket]] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def length(self, key: str) -> int:
        return len(self._lines.get(key, ()))

    def watch(self, key: str, ticket: Ticket) -> None:
        with self._lock:
            self._watching[key] = [ticket]  # only the first in line watches

    def wake(self, key: str) -> None:
        if key in self._watching:
            with self._lock:
                watching = self._watching.pop(key, ())
            for ticket in watching:
                ticket.call()

    def join(self, key: str, ticket: Ticket) -> bool:
        with self._lock:
            line = self._lines.setdefault(key, deque())
            line.append(ticket)
            return len(line) == 1

    def leave(self, key: str, ticket: Ticket) -> None:
        with self._lock:
            line = self._lines.get(key)
            if line is None or ticket not in line:
                return
            was_first = line[0] is ticket
            if was_first:
                self._watching.pop(key, None)
            line.remove(ticket)
            if not line:
                del self._lines[key]
            elif was_first:
                self._call_next(line)
                if not line:
                    del self._lines[key]

    def _call_next(self, line: deque[Ticket]) -> None:
        """The first whose waiter is still there."""
        while line and not line[0].call():
            line.popleft()


class Timer:
    """How long, by which clock: a clock that brings its own `sleep` is slept on."""

    def __init__(self, clock: Clock | None) -> None:
        self.now: Clock = checked_clock(clock) or wall_us
        self._sleep: Callable[[float], None] | None = getattr(clock, "sleep", None)
        self._asleep: Callable[[float], Awaitable[None]] | None = getattr(clock, "asleep", None)

    def patience(self, seconds: float) -> float | None:
        """How long to stand in line in real seconds: on a clock of its own, until called."""
        return None if self._sleep or seconds == inf else max(0.0, seconds)

    def sleep(self, seconds: float) -> None:
        if self._sleep is None:
            time.sleep(seconds)
        else:
            self._sleep(seconds)

    async def asleep(self, seconds: float) -> None:
        if self._asleep is None:
            import asyncio

            await asyncio.sleep(seconds)
        else:
            await self._asleep(seconds)


def wait_until_allowed(
    lines: WaitQueues,
    timer: Timer,
    ticket: Ticket,
    key: str,
    cost: int,
    timeout: float | None,
    line: str | None = None,
) -> Steps[Decision]:
    """Take, and if denied sleep until due and take again; past the timeout, the denial.

    `line`: of a place, its counter's name, which is woken when one is given back; else the line is the key's.
    """
    name = key if line is None else line
    ends = timer.now() + checked_seconds(timeout) * 1_000_000
    try:
        if not lines.join(name, ticket):
            decision: Decision = yield LimiterCall("_peek", (key, cost))
            if _too_late(decision, timer.now(), ends):
                return decision
            called = yield AwaitTurn(ticket, timer.patience((ends - timer.now()) / 1_000_000))
            if not called or timer.now() > ends:
                decision = yield LimiterCall("_peek", (key, cost))
                retry_us = 1 if decision else decision.outcome[2]
                return (yield from denial_after_timeout(decision, retry_us))
        look = SlotPoll(lines, timer, name) if line is not None else None
        while True:
            watching = None if look is None else look.watch(ticket)
            decision = yield LimiterCall("take", (key, cost))
            if decision or _too_late(decision, timer.now(), ends):
                break
            if look is None or watching is None:
                yield Sleep(decision.outcome[2] / 1_000_000)
            else:
                yield look.wait(watching, ends)
    finally:
        lines.leave(name, ticket)
    delay_us = decision.outcome[4]
    patience_us = max(0.0, ends - timer.now())
    if delay_us > patience_us:
        yield LimiterCall("refund", (decision,))
        return (yield from denial_after_timeout(decision, delay_us - int(patience_us)))
    return (yield from until_delay_is_over(decision))


def until_delay_is_over(decision: Decision) -> Steps[Decision]:
    """Sleep off a leaky bucket's delay; who is interrupted gives the place back."""
    if decision.outcome[4]:
        try:
            yield Sleep(decision.delay)
        except BaseException:
            yield LimiterCall("refund", (decision,))
            raise
    return decision


def denial_after_timeout(decision: Decision, retry_us: int) -> Steps[Decision]:
    """There was room, but not in time: a denial, with the numbers of a charge not made."""
    uncharged: Decision = yield LimiterCall("_peek", (decision.key, 0))
    _, remaining, _, reset_us, _ = uncharged.outcome
    return decision._replace(outcome=(False, remaining, retry_us, reset_us, 0))


def _too_late(decision: Decision, now: int, ends: float) -> bool:
    if decision:
        return False
    if decision.outcome[2] == UNKNOWN:
        return now >= ends
    return decision.never or now + decision.outcome[2] > ends


class SlotPoll:
    """How the first in line waits for a place: until one is given back here; and it looks now and then, since others may give one back."""

    def __init__(self, lines: WaitQueues, timer: Timer, name: str) -> None:
        self._lines = lines
        self._timer = timer
        self._name = name
        self._seconds = SHORTEST_LOOK

    def watch(self, like: Ticket) -> Ticket:
        """Before asking, so that no place is given back unseen."""
        watching: Ticket = type(like)()
        self._lines.watch(self._name, watching)
        return watching

    def wait(self, watching: Ticket, ends: float) -> Sleep | AwaitTurn:
        seconds = min(self._seconds, max(0.0, (ends - self._timer.now()) / 1_000_000))
        self._seconds = min(LONGEST_LOOK, 2 * self._seconds)
        if self._timer.patience(seconds) is None:
            return Sleep(max(seconds, SHORTEST_LOOK))
        return AwaitTurn(watching, seconds)


def checked_seconds(timeout: float | None) -> float:
    if timeout is None:
        return inf
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise TimeoutValueError(timeout)
    return timeout if timeout < LONGEST_PATIENCE else inf
