"""`query sku as int`: `7`, `07` and `+7` are one value to an application that reads a number, so they are one to the rule."""

from __future__ import annotations

from collections.abc import Callable

LONGEST_NUMBER = 64

Conversion = Callable[[str | None], str | None]


def conversion_from_argument(argument: str) -> tuple[str, Conversion]:
    """The name, and what to make of its value."""
    name, separator, kind = argument.rpartition(" as ")
    if separator and kind.strip().lower() == "int":
        return name.strip(), _as_int
    return argument, _as_it_is


def _as_it_is(value: str | None) -> str | None:
    return value


def _as_int(value: str | None) -> str | None:
    """None if it is no whole number: as good as missing."""
    if value is None or len(value) > LONGEST_NUMBER:
        return None
    try:
        return str(int(value))
    except ValueError:
        return None
