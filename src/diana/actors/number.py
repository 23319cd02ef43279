"""`query sku as int`: `7`, `07`, `+7` and `7.0` are one value to an application that reads an integer, so they are one to the rule.

A spelling that an application accepts and a rule does not is a way around the rule. So everything counts that either `int()` or pydantic
(FastAPI) reads as an integer, and also a few spellings that both refuse: to count those costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Conversion = Callable[[str | None], str | None]

# `\d` includes the digits of other scripts, as in `int()`. pydantic removes leading zeros before it reads the sign: `0-7` is -7 to it.
_INTEGER = re.compile(r"(?:\+?0[0_]*(?=-))?([+-]?)([\d_]*\d)(?:\.0+)?")


def conversion_from_argument(argument: str) -> tuple[str, Conversion]:
    """The name, and what to make of its value."""
    name, separator, kind = argument.rpartition(" as ")
    if separator and kind.strip().lower() == "int":
        return name.strip(), _as_int
    return argument, _as_it_is


def _as_it_is(value: str | None) -> str | None:
    return value


def _as_int(value: str | None) -> str | None:
    """The integer's shortest spelling; None if the value is not an integer, which is as good as missing.

    Text operations only: `int()` refuses 4,301 digits, even if all but one are leading zeros, and pydantic does not.
    """
    found = None if value is None else _INTEGER.fullmatch(value.strip())
    if found is None:
        return None
    sign, digits = found.groups()
    digits = digits.replace("_", "")
    if not digits.isascii():
        digits = "".join(str(int(digit)) for digit in digits)
    digits = digits.lstrip("0")
    if not digits:
        return "0"
    return f"-{digits}" if sign == "-" else digits
