"""What code passes to `guard.override`: checked, so that a wrong argument is an error there and not in a later request."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta

from diana.core.counter import CounterSpec
from diana.core.errors import ConfigError, shown
from diana.core.limit import LARGEST_RPU
from diana.core.limit_adjustments import Override, cost_never_passes
from diana.core.rule import Rule

LATEST = 253_402_300_800
"""The end of the year 9999, in seconds since the epoch."""
MOMENT = "until= must be seconds since the epoch or a datetime with a timezone"


def override_from_arguments(rpu: object, burst: object, until: object) -> Override:
    """ConfigError names the argument. Whether the numbers fit the rule is checked beside its limit."""
    return Override(
        _whole("rpu", rpu, 0),
        None if burst is None else _whole("burst", burst, 0),
        None if until is None else _micros(until),
    )


def override_key(rule: Rule, name: str, value: str) -> str:
    """The key of one value of the actor of a rule that was found by this name."""
    if rule.key_from is None:
        raise ConfigError(
            f"rule {name!r} counts by {rule.actor}; overrides are by the value of one actor"
        )
    if not isinstance(value, str):
        said = f"value must be a str, the value of the rule's actor (got {shown(value)})"
        raise ConfigError(said + (f"; write '{value}'" if value.__class__ is int else ""))
    return rule.key_from(value)


def check_cost_can_pass(rule: Rule, meter: CounterSpec) -> None:
    if rule.cost > meter.params.limit and not meter.denies_all:
        raise ConfigError(cost_never_passes(rule.cost, meter.params.limit))


def _whole(name: str, value: object, smallest: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and smallest <= value <= LARGEST_RPU:
        return int(value)
    said = f"{name}= must be a whole number from {smallest} to 10**12 (got {shown(value)})"
    meant = _number_meant(value)
    if meant is not None and smallest <= meant <= LARGEST_RPU:
        said += f"; write {name}={meant}"
    raise ConfigError(said)


def _number_meant(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 14:
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None


def _micros(until: object) -> int:
    if isinstance(until, datetime) and until.tzinfo is not None:
        return int(until.timestamp() * 1_000_000)
    if isinstance(until, (int, float)) and not isinstance(until, bool) and 0 <= until < LATEST:
        return int(until * 1_000_000)
    raise ConfigError(f"{MOMENT} (got {shown(until)}){_moment_meant(until)}")


def _moment_meant(until: object) -> str:
    """What to write instead, if that is plain."""
    if isinstance(until, datetime):
        return "; add tzinfo=UTC, or the timezone that is meant"
    if isinstance(until, date):
        return f"; write until=datetime({until.year}, {until.month}, {until.day}, tzinfo=UTC)"
    if isinstance(until, timedelta):
        return f"; write until=time.time() + {until.total_seconds()}"
    if isinstance(until, str) and _is_moment(until):
        return f"; write until=datetime.fromisoformat({until!r}).replace(tzinfo=UTC)"
    if isinstance(until, float) and math.isinf(until):
        return "; leave until out for an override without end"
    return ""


def _is_moment(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is None
    except ValueError:
        return False
