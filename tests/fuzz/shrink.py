"""Makes a history that fails shorter and its numbers simpler, as long as it fails. Greedy, and bounded in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic
from typing import Any

SECONDS = 20.0
INDENT = "    "


class _Enough(Exception):
    """The time is over."""


def shrink(history: Any, fails: Callable[[Any], bool], seconds: float = SECONDS) -> Any:
    """The simplest history found that still fails. It has `steps`; most of them do not matter."""
    return _Shrinking(history, fails, monotonic() + seconds).simplest()


class _Shrinking:
    def __init__(self, history: Any, fails: Callable[[Any], bool], until: float) -> None:
        self._history = history
        self._fails = fails
        self._until = until
        self._tried = {repr(history)}

    def simplest(self) -> Any:
        with suppress(_Enough):
            while self._remove_steps() or self._simplify():
                pass
        return self._history

    def _remove_steps(self) -> bool:
        """Those at the end first: what comes after the failure matters least."""
        removed, length = False, len(self._history.steps)
        while length:
            end = len(self._history.steps)
            while end > 0:
                steps = self._history.steps
                begin = max(0, end - length)
                removed |= self._try(self._history._replace(steps=steps[:begin] + steps[end:]))
                end = begin
            length //= 2
        return removed

    def _simplify(self) -> bool:
        return any(self._try(candidate) for candidate in simplified(self._history))

    def _try(self, candidate: Any) -> bool:
        if monotonic() > self._until:
            raise _Enough
        said = repr(candidate)
        if said in self._tried:
            return False
        self._tried.add(said)
        if not self._fails(candidate):
            return False
        self._history = candidate
        return True


def simplified(value: Any) -> Iterator[Any]:
    """Values like this one, each a little simpler; large cuts first."""
    if isinstance(value, bool):
        if value:
            yield False
    elif isinstance(value, int):
        yield from _simplified_number(value)
    elif isinstance(value, dict):
        yield from _simplified_mapping(value)
    elif hasattr(value, "_replace"):
        for name in value._fields:
            for other in simplified(getattr(value, name)):
                yield value._replace(**{name: other})
    elif isinstance(value, tuple | list):
        yield from _simplified_sequence(value)


def _simplified_sequence(value: Any) -> Iterator[Any]:
    length = len(value) // 2
    while length:
        for begin in range(0, len(value), length):
            yield value[:begin] + value[begin + length :]
        length //= 2
    if len(value) == 1:
        yield value[:0]
    for place, one in enumerate(value):
        for other in simplified(one):
            yield value[:place] + type(value)((other,)) + value[place + 1 :]


def _simplified_mapping(value: dict[Any, Any]) -> Iterator[dict[Any, Any]]:
    for name in value:
        yield {other: one for other, one in value.items() if other != name}
    for name, one in value.items():
        for other in simplified(one):
            yield {**value, name: other}


def _simplified_number(value: int) -> Iterator[int]:
    if value < 0:
        yield -value
    for other in (0, 1, 2):
        if other < abs(value):
            yield other if value > 0 else -other
    digits = 10 ** max(0, len(str(abs(value))) - 1)
    while digits > 1:
        rounded = value - value % digits
        if rounded != value:
            yield rounded
        digits //= 10
    if abs(value) > 3:
        yield value // 2
        yield value - 1 if value > 0 else value + 1


def as_code(history: Any) -> str:
    """The history as an expression that can be run."""
    return _as_code(history, "")


def _as_code(value: Any, indent: str) -> str:
    said = repr(value)
    if len(indent) + len(said) <= 100:
        return said
    inner = indent + INDENT
    if hasattr(value, "_fields"):
        parts = [f"{name}={_as_code(getattr(value, name), inner)}" for name in value._fields]
        opening, closing = f"{type(value).__name__}(", ")"
    elif isinstance(value, dict):
        parts = [f"{name!r}: {_as_code(one, inner)}" for name, one in value.items()]
        opening, closing = "{", "}"
    elif isinstance(value, tuple | list):
        parts = [_as_code(one, inner) for one in value]
        opening, closing = "()" if isinstance(value, tuple) else "[]"
    else:
        return said
    return opening + "".join(f"\n{inner}{part}," for part in parts) + f"\n{indent}{closing}"
