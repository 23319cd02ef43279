"""Compare and swap: for algorithms that have no kernel in Lua, and for refunds.

Read the states, let the pure function decide here, write if nothing has changed meanwhile; else decide anew on what is there now. Two
trips instead of one, and more under contention; what comes out is the same. A log travels whole, both ways; but the refund of one that
has a kernel in Lua is a call of the script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from diana.core.charge import Charges, decide_all_or_nothing
from diana.core.contracts import State
from diana.core.counter import CounterSpec
from diana.core.entry_log import Log
from diana.redis_client.reply_errors import (
    BadCounter,
    Contended,
    DeadlinePassed,
    UnknownOutcome,
    failure_from_script,
)
from diana.stores.redis.protocol.commands import (
    LENIENCE_US,
    Exchange,
    TimeLeft,
    acquire,
    call_script,
)
from diana.stores.redis.protocol.scripts import (
    GIVEN_GRACE_MS,
    GRACE_MS,
    TOO_LATE,
    keeps_log,
    scripts,
    slowest_params,
    state_from_wire,
    wire_limit,
    wire_state,
)
from diana.stores.redis.protocol.server_clock import ServerClock, monotonic_us


class Swapped(NamedTuple):
    """What was decided, when, and the states as they stand now."""

    now: int
    result: Any
    states: list[State | None]


StateChange = Callable[[list[State | None], int], tuple[Any, list[State | None]]]
"""From the states and the time to a result, and the states to be (None: leave it)."""


def charge_all(charges: Charges, write: bool) -> StateChange:
    """All or nothing; the result is an outcome for each."""

    def change(states: list[State | None], now: int) -> tuple[Any, list[State | None]]:
        decisions, after = decide_all_or_nothing(charges, states, now)
        outcomes = [decision.outcome for decision in decisions]
        return outcomes, after if write else [None] * len(after)

    return change


class Part(NamedTuple):
    """What is refunded of one charge, and when that charge was made."""

    cost: int
    at: int


TRIES = 4
"""Of a refund for which a request waits."""


@dataclass(slots=True)
class Refund:
    """Charges to one counter, undone together."""

    meter: CounterSpec
    parts: Sequence[Part]
    tries: int = TRIES
    """How often it is tried while others write to the counter."""
    may_be_written: bool = False
    """It was sent, so that its outcome is unknown if no reply comes."""

    def __call__(self, states: list[State | None], now: int) -> tuple[Any, list[State | None]]:
        self.may_be_written = True
        (before,) = states
        if before is None:
            return None, [None]
        state, algorithm, params = before, self.meter.algorithm, self.meter.params
        for cost, at in self.parts:
            state = algorithm.refund(state, params, cost, at, now)
        # Nothing to refund: writing would remove a counter that is as good as new, and with it the grace.
        return None, [None if state == before else state]


@dataclass(frozen=True, slots=True)
class Renewal:
    """A place that was taken at `at`; the result is its moment from now on."""

    meter: CounterSpec
    cost: int
    at: int

    def __call__(self, states: list[State | None], now: int) -> tuple[Any, list[State | None]]:
        (state,) = states
        algorithm: Any = self.meter.algorithm
        after, moment = algorithm.renew(state, self.meter.params, self.cost, self.at, now)
        return moment, [after if moment else None]


def swap(
    clock: ServerClock,
    keys: Sequence[bytes],
    meters: Sequence[CounterSpec],
    change: StateChange,
    now: int | None,
    waiting: TimeLeft,
    asking: bool = False,
) -> Exchange:
    """Gives what `change` came to, once it is written."""
    if isinstance(change, Refund) and getattr(change.meter.algorithm, "lua_refund", None):
        return (yield from _strike(clock, keys, change, now, waiting, asking))
    sent = monotonic_us()
    reply = yield from call_script(scripts()["read"], keys, (), asking)
    server_us, found = _found(reply, len(keys))
    clock.hear(server_us, sent)
    left_us = int(waiting.left * 1_000_000)
    # A reply that comes too late would be the server's fault; that others are quicker is not.
    last_try = monotonic_us() + left_us * 4 // 5
    tries = change.tries if isinstance(change, Refund) else None
    lenience = iter(LENIENCE_US)
    allowed_us = left_us + next(lenience)
    while True:
        at = server_us if now is None else now
        states = [_state_of(meter, text) for meter, text in zip(meters, found, strict=True)]
        try:
            result, after = change(states, at)
        except Exception as error:
            raise BadCounter(f"a counter holds what its algorithm cannot read: {error!r}") from None
        if all(state is None for state in after):
            return Swapped(at, result, states)
        argv: list[Any] = [clock.at(monotonic_us() + allowed_us)]
        for meter, before, state in zip(meters, found, after, strict=True):
            argv += [before or b"", *_written(meter, state, at, now is not None)]
        reply = yield from call_script(scripts()["swap"], keys, argv, asking)
        outcome = reply[0] if isinstance(reply, list) and reply else None
        if outcome == TOO_LATE:
            more = next(lenience, None)
            if more is None:
                raise DeadlinePassed("the command came to the server after its deadline")
            allowed_us = left_us + more
            continue
        if outcome == 0:
            tries = None if tries is None else tries - 1
            if tries == 0 or monotonic_us() > last_try:
                raise Contended("others write to the counter all the time")
            if isinstance(change, Refund):
                change.may_be_written = False
        if outcome == 1:
            stand = [
                before if state is None else state
                for before, state in zip(states, after, strict=True)
            ]
            return Swapped(at, result, stand)
        server_us, found = _found(reply[1:] if outcome == 0 else None, len(keys))


def _strike(
    clock: ServerClock,
    keys: Sequence[bytes],
    refund: Refund,
    now: int | None,
    waiting: TimeLeft,
    asking: bool,
) -> Exchange:
    """A log is not read whole for one entry: the script strikes it out."""
    limit = wire_limit(refund.meter)
    requests = [word for cost, at in refund.parts for word in ("refund", 1, limit, f"{cost}@{at}")]
    count = len(refund.parts)
    refund.may_be_written = True
    at, *said = yield from acquire(
        clock, [*keys] * count, requests, now, waiting, asking, count=count
    )
    for answer in said:
        if isinstance(answer, bytes):
            raise failure_from_script(answer.decode("utf-8", "replace"))
    return Swapped(at, None, [None])


def _state_of(meter: CounterSpec, text: bytes | None) -> State | None:
    """None also for the text that an earlier version kept where a log is now."""
    state = state_from_wire(text)
    return None if keeps_log(meter.algorithm) and not isinstance(state, Log) else state


def _found(reply: Any, count: int) -> tuple[int, list[bytes | None]]:
    """The time and what the keys hold: else it was not the script that answered."""
    try:
        (seconds, micros), *found = reply
        server_us = int(seconds) * 1_000_000 + int(micros)
    except (TypeError, ValueError):
        raise UnknownOutcome("unexpected reply") from None
    if len(found) != count or not all(isinstance(text, bytes | None) for text in found):
        raise UnknownOutcome("unexpected reply")
    return server_us, found


def _written(meter: CounterSpec, state: State | None, now: int, given: bool) -> tuple[bytes, int]:
    """The state and how long it matters, in ms: to the slowest limit that counts on it."""
    if state is None:
        return b"", 0
    reset_us = max(
        meter.decide(state, params, 0, now)[1][3]
        for params in (meter.params, *slowest_params(meter))
    )
    if not reset_us:
        return b"-", 0  # as good as never seen
    return wire_state(state), -(-reset_us // 1_000) + (GIVEN_GRACE_MS if given else GRACE_MS)
