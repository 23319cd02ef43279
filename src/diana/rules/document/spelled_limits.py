"""A limit such as `100/minute` where a rule wants its numbers in fields of their own."""

from __future__ import annotations

from typing import Any

from diana.core.duration import spelling_from_micros
from diana.core.errors import ConfigError, shown
from diana.core.limit import ConcurrencyLimit, Limit, limits_from_spelling
from diana.rules.document.readers import Read, UnbuiltField, name_in
from diana.rules.document.yaml_tree import Mapping, Node, Scalar

NAMES = ("limit", "rate")
"""What other limiters call it."""


class SpelledLimit(UnbuiltField):
    """Reads a field in which people write a whole limit: it says which fields to write instead."""

    def __init__(self) -> None:
        super().__init__("")

    def __call__(self, *there: Node | str) -> Any:
        node, path = there
        name = name_in(str(path))
        written = node.text if isinstance(node, Scalar) else None
        limits = _limits(written)
        fields = (
            "algo and most"
            if any(isinstance(one, ConcurrencyLimit) for one in limits)
            else "rpu and unit"
        )
        got = (
            "a mapping"
            if isinstance(node, Mapping)
            else "a list"
            if written is None
            else shown(written)
        )
        raise ConfigError(
            f"{name} must be written as {fields} (got {got}); write {_in_fields(limits, written)}"
        )


def or_spelled_limit(read: Read) -> Read:
    """The number `rpu`; for `100/minute` in its place, the message says what to write."""

    def read_rpu(node: Node, path: str) -> Any:
        try:
            return read(node, path)
        except ConfigError:
            written = node.text if isinstance(node, Scalar) else ""
            limits = _limits(written)
            if not limits:
                raise
        raise ConfigError(
            f"{name_in(path)} must be a number (got {shown(written)}); write {_in_fields(limits, None)}"
        )

    return read_rpu


def implied(written: dict[str, Node]) -> set[str]:
    """The fields that are missing only because a limit was written in one piece."""
    if any(name in written for name in NAMES):
        return {"unit", "rpu", "most"}
    rpu = written.get("rpu")
    return {"unit"} if isinstance(rpu, Scalar) and _limits(rpu.text) else set()


def _limits(text: str | None) -> list[Limit]:
    """Empty, if it is no spelling of a limit."""
    try:
        return limits_from_spelling(text) if text else []
    except ConfigError:
        return []


def _in_fields(limits: list[Limit], written: str | None) -> str:
    if len(limits) > 1:
        return "a rule for each: " + " and ".join(f"{{{_fields(one)}}}" for one in limits)
    if limits:
        return _fields(limits[0])
    number = written if written and written.isascii() and written.isdecimal() else "100"
    return f"rpu: {number[:15]} and a unit such as unit: minute"


def _fields(limit: Limit) -> str:
    if isinstance(limit, ConcurrencyLimit):
        return f"algo: C, most: {limit.rpu}"
    return f"rpu: {limit.rpu}, unit: {spelling_from_micros(limit.unit_us)}"
