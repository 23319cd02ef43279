"""What `map` and `geo` make of one property of a request: for which of its values a variable is what."""

from __future__ import annotations

import re
from typing import NamedTuple

from diana.nginx.importing.notes import Untranslatable

_VARIABLE = re.compile(r"\$(?:\{([A-Za-z0-9_]+)\}|([A-Za-z0-9_]+))")


class Table(NamedTuple):
    actor: str
    """The property: `ip`, `header X-Plan`."""
    groups: dict[str, tuple[str, ...]]
    """For each result but the default, the values that have it."""
    default: str
    absent: str
    """The result for requests that do not have the property."""
    remarks: tuple[str, ...] = ()
    is_literal: bool = False
    """A `$` in a result is no variable."""


class Variable(NamedTuple):
    """As it is written, and as nginx looks it up: in any case."""

    spelling: str

    @property
    def name(self) -> str:
        return self.spelling.lower()


Part = str | Variable
"""Of a text with variables in it."""


def parts_of_text(text: str) -> tuple[Part, ...]:
    parts: list[Part] = []
    end = 0
    for found in _VARIABLE.finditer(text):
        parts += _literal(text[end : found.start()])
        parts.append(Variable(found[1] or found[2]))
        end = found.end()
    parts += _literal(text[end:])
    return tuple(parts)


def _literal(text: str) -> list[Part]:
    if "$" in text:
        raise Untranslatable(f"{text!r} has a $ without a name")
    return [text] if text else []
