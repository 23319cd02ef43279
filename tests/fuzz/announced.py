"""The response to an allowed request says, for each limit, after how many seconds there is more than what remains."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from diana import Verdict
from diana.core.counter import CounterSpec
from diana.responses.denial_response import ResponseBuilder
from diana.responses.ratelimit_headers import policy_name
from tests.fuzz.findings import BrokenLaw

SECOND_US = 1_000_000
_ITEM = re.compile(r'"((?:[^"\\]|\\.)*)";r=(\d+);t=(\d+)')

StateOf = Callable[[CounterSpec, str], Any]


def check_announced(
    verdict: Verdict, answers: ResponseBuilder, state_of: StateOf, now: int
) -> None:
    line = dict(answers.fields(verdict)).get(b"ratelimit", b"").decode()
    announced = {name: (int(left), int(wait)) for name, left, wait in _ITEM.findall(line)}
    meters = verdict.meters or verdict.match.meters
    names = [rule.name for rule in verdict.rules]
    for place in verdict.match.enforced:
        rule, meter, decision = verdict.rules[place], meters[place], verdict.decisions[place]
        said = announced.get(policy_name(rule.name))
        if said is None or names.count(rule.name) > 1:
            continue
        state = state_of(meter, decision.key)
        # An interval of a bucket may be no whole number of µs: a response may count by the µs that follows.
        waits = [_more_after_us(meter, state, moment) for moment in (now, now + 1)]
        allowed = {-(-us // SECOND_US) for wait in waits for us in (wait - 1, wait, wait + 1)}
        more_us = waits[0]
        if said[0] != decision.remaining or said[1] not in allowed:
            raise BrokenLaw(
                f"the response says {said}, and there is more after {more_us} µs: {decision}"
            )


def _more_after_us(meter: CounterSpec, state: Any, now: int) -> int:
    """Until more remains than now; if it never does, until the key is as good as new."""

    def remaining(after_us: int) -> int:
        return meter.decide(state, meter.params, 0, now + after_us)[1][1]

    _, left, _, reset_us, _ = meter.decide(state, meter.params, 0, now)[1]
    if remaining(reset_us) <= left:
        return reset_us
    early, late = 0, reset_us
    while late - early > 1:
        between = (early + late) // 2
        if remaining(between) > left:
            late = between
        else:
            early = between
    return late
