"""Refunds in nginx's Lua leave the same states as in Python."""

from __future__ import annotations

import json
from importlib.resources import files
from random import Random
from typing import Any

import pytest

from diana.core.charge import charged_at
from diana.core.counter import meter_from_limit
from diana.core.decision import Decision
from diana.core.limit import Limit
from diana.nginx.exporter import kernels
from diana.runtime.entry_points import algorithms
from tests.servers.server import Server

BEGIN_US = 1_700_000_000_000_000
SECOND_US = 1_000_000

SCRIPT = """
local kernels = (function() %s end)()
local function require() return kernels end
local refund = (function() %s end)()
local state, states, moments = nil, {}, {}
for place, step in ipairs(cjson.decode(ARGV[3])) do
  local params = cjson.decode(ARGV[2])
  if step.refunded then
    local at = moments[step.of]
    if state and at then state = refund[ARGV[1]](state, params, step.refunded, at, step.now) end
  else
    local after, passed, remaining, retry, reset = kernels[ARGV[1]](state, params, step.cost, step.now)
    if passed == 1 then
      state = after
      moments[place] = refund.moment_of({code = ARGV[1], numbers = params}, {at = step.now, reset = reset})
    end
  end
  local digits = {}
  for place, number in ipairs(state or {}) do digits[place] = string.format('%%.0f', number) end
  states[#states + 1] = table.concat(digits, ',')
end
return states
"""


def history(random: Random, pace: int, capacity: int) -> list[dict[str, int]]:
    now = BEGIN_US
    steps: list[dict[str, int]] = []
    charged: list[tuple[int, int]] = []
    """The number of the step, and how much."""
    for _ in range(60):
        now += random.choice(
            [0, 0, 1, pace, 3 * pace, random.randint(0, pace * capacity), -pace, -1]
        )
        cost = random.choice([1, 1, 2, 3])
        if charged and random.random() < 0.45:
            of, cost = charged.pop(random.randrange(len(charged)))
            steps.append({"now": now, "refunded": cost, "of": of})
        else:
            charged.append((len(steps) + 1, cost))
            steps.append({"now": now, "cost": cost})
    return steps


@pytest.mark.parametrize("code", ["TB", "LB", "W", "SW"])
def test_the_states_are_the_same(redis7: Server, code: str) -> None:
    refund = files("diana.nginx").joinpath("lua", "diana", "refund.lua").read_text("utf-8")
    script = SCRIPT % (kernels(), refund)
    random = Random(code)
    with_ledger = ahead = 0
    for _ in range(40):
        unit_us, rpu = random.choice(
            [(SECOND_US, 10), (7 * SECOND_US, 3), (86_400 * SECOND_US, 9_973)]
        )
        options: dict[str, Any] = (
            {"burst": random.choice([1, 5, 40])} if code in ("TB", "LB") else {}
        )
        meter = meter_from_limit("any", Limit(rpu, unit_us), algorithms()[code], options)
        params: Any = meter.params
        steps = history(random, unit_us // rpu, params.limit)
        found = redis7.ask("EVAL", script, 0, code, json.dumps(params.numbers), json.dumps(steps))
        state: Any = None
        moments: dict[int, int] = {}
        for place, (step, text) in enumerate(zip(steps, found, strict=True), 1):
            now = step["now"]
            if "refunded" in step:
                if step["of"] in moments:
                    at = moments[step["of"]]
                    state = meter.algorithm.refund(state, params, step["refunded"], at, now)
            else:
                after, outcome = meter.algorithm.decide(state, params, step["cost"], now)
                if outcome[0]:
                    decision = Decision(outcome, params.limit, "k", step["cost"], now)
                    state, moments[place] = after, charged_at(meter, decision)
                    ahead += moments[place] > now
            assert text.decode() == ",".join(map(str, state or ()))
            with_ledger += code in ("TB", "LB") and state is not None and len(state) > 5
    assert code not in ("TB", "LB") or with_ledger > 40
    assert code not in ("W", "SW") or ahead > 20
