"""A limit as people say it: so many per so long."""

from __future__ import annotations

import re
from typing import NamedTuple

from diana.core.duration import ALLOWED, micros_from_spelling, spelling_from_micros
from diana.core.errors import ConfigError, shown

LARGEST_RPU = 10**12

_SPELLING = re.compile(
    r"\s*([0-9]{1,15})\s*(?:/|\sper\s)\s*([0-9a-zA-Z]+(?:\s[a-zA-Z]+)?)\s*", re.IGNORECASE
)


class Limit(NamedTuple):
    """`rpu` requests per `unit_us` microseconds."""

    rpu: int
    unit_us: int

    def __str__(self) -> str:
        return f"{self.rpu}/{spelling_from_micros(self.unit_us)}"


def limit_from_spelling(text: str) -> Limit:
    """`100/minute` and `100 per 30s`; anything else is an error that says what is allowed."""
    spelled = _SPELLING.fullmatch(text)
    if spelled is None:
        raise ConfigError(
            f"{shown(text)} is no limit; write N/unit or N per unit, such as 100/minute or 10 per 30s, "
            f"where N is a whole number from 1 and the unit is {ALLOWED}"
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
    if not 1 <= rpu <= LARGEST_RPU:
        raise ConfigError(f"{rpu} requests per unit; write a whole number from 1 to 10**12")
    return Limit(rpu, unit_us)
