"""Requests that wait for a place (`max_wait`): first come, first served per key, and no more than may wait.

Only the first in a line asks: when a place is given back in this process, and now and then, because another node may give one back. A
request that finds a line of its key does not overtake it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from diana.core.counter import CounterSpec
from diana.core.decision import UNKNOWN
from diana.core.limit import uses_slots
from diana.core.request import Request
from diana.core.verdict import Verdict
from diana.slots.slot import place_name
from diana.slots.wait_queue import AwaitTurn, Sleep, SlotPoll, Ticket, Timer, WaitQueues


class QueueLimits(NamedTuple):
    """Where a request waits, for how long, and with how many others."""

    name: str
    max_wait_us: int
    max_waiting: int


class CheckAgain(NamedTuple):
    request: Request


VerdictSteps = Generator[CheckAgain | Sleep | AwaitTurn, Any, Verdict]


def line_of_meter(meter: CounterSpec, key: str) -> QueueLimits | None:
    """None if its requests do not wait."""
    params: Any = meter.params
    if not uses_slots(meter.algorithm) or not getattr(params, "max_wait_us", 0):
        return None
    return QueueLimits(place_name((meter, key, 1)), params.max_wait_us, params.max_waiting)


def line_of_denial(verdict: Verdict) -> QueueLimits | None:
    """Where a denied request waits; None if it does not."""
    for place in verdict.match.enforced:
        if place < len(verdict.decisions) and not verdict.decisions[place]:
            meters = verdict.meters or verdict.match.meters
            return line_of_meter(meters[place], verdict.decisions[place].key)
    return None


def wait_for_slot(
    lines: WaitQueues,
    timer: Timer,
    ticket: Ticket,
    line: QueueLimits,
    request: Request,
    verdict: Verdict,
) -> VerdictSteps:
    """Check again until no place is missing, another rule denies, or the waiting is over: then the last verdict.

    `verdict`: a denial, or a mere look, because others wait already. That took no place, whatever it says.
    """
    ends = timer.now() + line.max_wait_us
    name = line.name
    if lines.length(name) >= line.max_waiting:
        return _denied_in_line(verdict, line)
    try:
        if not lines.join(name, ticket):
            called = yield AwaitTurn(ticket, timer.patience((ends - timer.now()) / 1_000_000))
            if not called:
                return _denied_in_line(verdict, line)
        look = SlotPoll(lines, timer, name)
        while True:
            watching = look.watch(ticket)
            verdict = yield CheckAgain(request)
            again = line_of_denial(verdict)
            if again is None or again.name != name or timer.now() >= ends:
                return verdict
            yield look.wait(watching, ends)
    finally:
        lines.leave(name, ticket)


def _denied_in_line(verdict: Verdict, line: QueueLimits) -> Verdict:
    """A place may be free, but it is for those who came before."""
    if not verdict.allowed or not verdict.decisions:
        return verdict
    meters = verdict.meters or verdict.match.meters
    asked = enumerate(zip(meters, verdict.decisions, strict=True))
    names = {place_name((meter, said.key, 1)): place for place, (meter, said) in asked}
    place = names.get(line.name, 0)  # 0: the rules were edited meanwhile
    decisions, params = list(verdict.decisions), meters[place].params
    _, remaining, _, reset_us, _ = decisions[place].outcome
    outcome = (False, remaining, getattr(params, "retry", 0) or UNKNOWN, reset_us, 0)
    decisions[place] = decisions[place]._replace(outcome=outcome)
    return verdict._replace(
        allowed=False, delay=0.0, denied_by=verdict.rules[place], decisions=tuple(decisions)
    )
