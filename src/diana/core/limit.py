"""A limit as people say it: so many per so long."""

from __future__ import annotations

import re
from typing import NamedTuple

from diana.core.duration import ALLOWED, micros_from_spelling, spelling_from_micros
from diana.core.errors import ConfigError, shown

LARGEST_RPU = 10**12
HOLD_US = 60_000_000
"""How long a place is held for a process that may have died, unless `hold` says otherwise."""
SHORTEST_HOLD_US = 100_000

_SPELLING = re.compile(
    r"\s*([0-9]{1,15})\s*(?:/|\sper\s)\s*([0-9a-zA-Z]+(?:\s[a-zA-Z]+)?)\s*", re.IGNORECASE
)


_AT_ONCE = re.compile(r"\s*([0-9]{1,15})\s+at\s+once\s*", re.IGNORECASE)


class Limit(NamedTuple):
    """`rpu` requests per `unit_us` microseconds. 0: every request is denied (`core/zero.py`)."""

    rpu: int
    unit_us: int

    def __str__(self) -> str:
        return f"{self.rpu}/{spelling_from_micros(self.unit_us)}"


class ConcurrencyLimit(Limit):
    """`rpu` at once: places that are taken and given back. `unit_us` is how long one is held whose process may have died."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{self.rpu} at once"


def limit_from_spelling(text: str) -> Limit:
    """`100/minute`, `100 per 30s` and `5 at once`; anything else is an error that says what is allowed."""
    at_once = _AT_ONCE.fullmatch(text)
    if at_once is not None:
        return checked_places(int(at_once[1]), HOLD_US)
    spelled = _SPELLING.fullmatch(text)
    if spelled is None:
        raise ConfigError(
            f"{shown(text)} is no limit; write N/unit, N per unit or N at once, such as 100/minute, 10 per 30s or 5 at once, "
            f"where N is a whole number and the unit is {ALLOWED}"
        )
    try:
        unit_us = micros_from_spelling(spelled[2])
    except ConfigError as error:
        raise ConfigError(f"in the limit {shown(text)}: {error}") from None
    return checked_limit(int(spelled[1]), unit_us)


def limits_from_spelling(text: str) -> list[Limit]:
    """`5/second; 100/minute`: several limits that hold together."""
    if not isinstance(text, str):
        raise ConfigError(f"{shown(text)} is no limit; write a str such as '100/minute'")
    return [limit_from_spelling(part) for part in text.split(";")]


def checked_limit(rpu: int, unit_us: int) -> Limit:
    if not 0 <= rpu <= LARGEST_RPU:
        raise ConfigError(f"{shown(rpu)} requests per unit; write a whole number from 0 to 10**12")
    return Limit(rpu, unit_us)


def checked_places(most: int, hold_us: int) -> ConcurrencyLimit:
    if not 1 <= most <= LARGEST_RPU:
        raise ConfigError(f"{shown(most)} at once; write a whole number from 1", path="most")
    if hold_us < SHORTEST_HOLD_US:
        raise ConfigError(
            f"hold is {spelling_from_micros(hold_us)}, too short to renew a place in time; write at least "
            f"{spelling_from_micros(SHORTEST_HOLD_US)}",
            path="hold",
        )
    return ConcurrencyLimit(most, hold_us)


def uses_slots(algorithm: object) -> bool:
    """Whether what it admits takes a place, and gives it back when done."""
    return bool(getattr(algorithm, "uses_slots", False))
