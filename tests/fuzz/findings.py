"""What the fuzzer finds: back ends that differ, or a law that is broken. Either names the step of the history."""

from __future__ import annotations

import re
from typing import Any

MANY_FIELDS = 8
LONG = re.compile(r"((\w)\2{9})\2+")
"""The keys that are too long to be kept as they are."""


class Finding(Exception):
    step: int | None = None
    """Which step of the history it was; set by what runs it."""


class Difference(Finding):
    def __init__(self, expected: Any, found: dict[str, Any]) -> None:
        self.expected = expected
        self.found = found
        super().__init__(expected, found)

    def __str__(self) -> str:
        lines = []
        for name, said in self.found.items():
            expected, said = _different_fields(self.expected, said)
            lines += [f"  {'model':<18} {expected}", f"  {name:<18} {said}"]
        return "back ends differ:\n" + LONG.sub(r"\1...", "\n".join(lines))


class BrokenLaw(Finding):
    """What must hold of any history, and does not in the model."""


class InvalidHistory(Exception):
    """It cannot be run: numbers that belong together were simplified apart."""


def compare(expected: Any, found: dict[str, Any]) -> None:
    different = {name: said for name, said in found.items() if said != expected}
    if different:
        raise Difference(expected, different)


def as_result(error: Exception) -> str:
    """An error is a result as well: all back ends must raise the same."""
    return f"{type(error).__name__}: {error}"


def _different_fields(expected: Any, found: Any) -> tuple[str, str]:
    names = getattr(expected, "_fields", ())
    if not names or type(expected) is not type(found) or len(names) < MANY_FIELDS:
        return repr(expected), repr(found)
    different = [name for name in names if getattr(expected, name) != getattr(found, name)]
    return tuple(  # type: ignore[return-value]
        ", ".join(f"{name}={getattr(one, name)!r}" for name in different)
        for one in (expected, found)
    )
