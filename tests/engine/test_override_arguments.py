"""`guard.override(...)` with what is no number, no moment, or too much: a ConfigError that names the argument."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from diana import AsyncGuard, ConfigError, Guard, Request
from diana.rules.loading import rules_from_bytes
from diana.testing import FakeClock

RULES = """
identity: {account: header X-Account-Id}
limits: {url: /, rules: [{name: api, actor: account, unit: minute, rpu: 3}]}
"""
BEGIN = datetime(2026, 12, 1, tzinfo=UTC)
ALICE = Request("GET", "/", {"X-Account-Id": "alice"}, peer="203.0.113.9")
HUGE = 10**5_000

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"rpu": "5"}, "rpu= must be a whole number from 0 to 10**12 (got '5'); write rpu=5"),
    ({"rpu": True}, "rpu= must be a whole number from 0 to 10**12 (got True)"),
    ({"rpu": 5.0}, "rpu= must be a whole number from 0 to 10**12 (got 5.0); write rpu=5"),
    ({"rpu": math.nan}, "rpu= must be a whole number from 0 to 10**12 (got nan)"),
    ({"rpu": math.inf}, "rpu= must be a whole number from 0 to 10**12 (got inf)"),
    ({"rpu": None}, "rpu= must be a whole number from 0 to 10**12 (got None)"),
    ({"rpu": -1}, "rpu= must be a whole number from 0 to 10**12 (got -1)"),
    ({"rpu": 10**12 + 1}, "rpu= must be a whole number from 0 to 10**12 (got 1000000000001)"),
    ({"rpu": HUGE}, "rpu= must be a whole number from 0 to 10**12 (got a number of more than 40 digits)"),
    ({"burst": "5"}, "burst= must be a whole number from 0 to 10**12 (got '5'); write burst=5"),
    ({"burst": False}, "burst= must be a whole number from 0 to 10**12 (got False)"),
    ({"burst": math.nan}, "burst= must be a whole number from 0 to 10**12 (got nan)"),
    ({"burst": HUGE}, "burst= must be a whole number from 0 to 10**12 (got a number of"),
    ({"until": math.inf}, "until= must be seconds since the epoch or a datetime with a timezone (got inf)"),
    ({"until": math.nan}, "(got nan)"),
    ({"until": True}, "(got True)"),
    ({"until": -1}, "(got -1)"),
    ({"until": HUGE}, "(got a number of more than 40 digits)"),
    ({"until": 10.0**300}, "(got 1e+300)"),
    ({"until": "2026-12-01"}, "(got '2026-12-01'); write until=datetime.fromisoformat('2026-12-01').replace(tzinfo=UTC)"),
    ({"until": "tomorrow"}, "(got 'tomorrow')"),
    ({"until": date(2026, 12, 1)}, "(got datetime.date(2026, 12, 1)); write until=datetime(2026, 12, 1, tzinfo=UTC)"),
    ({"until": datetime(2026, 12, 1)}, "add tzinfo=UTC"),
    ({"until": timedelta(hours=1)}, "write until=time.time() + 3600.0"),
    ({"value": 7}, "value must be a str, the value of the rule's actor (got 7); write '7'"),
    ({"value": None}, "value must be a str, the value of the rule's actor (got None)"),
    ({"rule": 7}, "rule must be a str, the name of a rule (got 7)"),
]  # fmt: skip


def limited(kind: type[Any]) -> Any:
    clock = FakeClock(int(BEGIN.timestamp()) * 1_000_000)
    return kind(rules_from_bytes(RULES.encode()), clock=clock)


@pytest.mark.parametrize("kind", [Guard, AsyncGuard])
@pytest.mark.parametrize(("wrong", "said"), WRONG)
def test_what_cannot_be_meant_is_refused(kind: type[Any], wrong: dict[str, Any], said: str) -> None:
    arguments = {"rule": "api", "value": "alice", "rpu": 5, **wrong}
    guard = limited(kind)
    with pytest.raises(ConfigError) as error:
        guard.override(arguments.pop("rule"), arguments.pop("value"), **arguments)
    assert said in str(error.value)
    assert not guard._evaluator.overrides, "nothing was changed"


@pytest.mark.parametrize("value", [7, None, b"alice"])
def test_the_same_values_are_refused_when_an_override_is_removed(value: Any) -> None:
    with pytest.raises(ConfigError, match="value must be a str"):
        limited(Guard).remove_override("api", value)
    with pytest.raises(ConfigError, match="rule must be a str"):
        limited(Guard).reset(ALICE, value or 7)


@pytest.mark.parametrize(
    "until",
    [
        BEGIN.timestamp() + 60,
        int(BEGIN.timestamp()) + 60,
        BEGIN + timedelta(seconds=60),
        (BEGIN + timedelta(seconds=60)).astimezone(timezone(timedelta(hours=5))),
    ],
)
def test_until_may_be_seconds_or_a_moment_with_a_timezone(until: Any) -> None:
    guard = limited(Guard)
    guard.override("api", "alice", rpu=50, until=until)
    assert guard.peek(ALICE).decisions[0].limit == 50
    guard.clock.advance(59.999)
    assert guard.peek(ALICE).decisions[0].limit == 50
    guard.clock.advance(0.001)
    assert guard.peek(ALICE).decisions[0].limit == 3


def test_for_coroutines_too() -> None:
    async def main() -> None:
        guard = limited(AsyncGuard)
        guard.override("api", "alice", rpu=50, until=BEGIN + timedelta(seconds=60))
        assert (await guard.peek(ALICE)).decisions[0].limit == 50

    asyncio.run(main())
