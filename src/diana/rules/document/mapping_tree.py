"""Rules in code: a mapping as the tree that a file of the same rules would give.

Everything in it is copied: later changes of the mapping have no effect. Numbers, dates, true, false and None become the text that YAML
has for them, and are read as a file's. Nothing in it stands in a line: mistakes have their path only.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping as Given
from datetime import date, datetime
from hashlib import sha256
from math import isinf, isnan
from typing import Any

from diana.core.errors import ConfigError, shown
from diana.rules.document.yaml_tree import (
    DEEPEST,
    LARGEST_BYTES,
    Mapping,
    Node,
    Scalar,
    Sequence,
)

NO_LINE = 0
"""The line of a node that stands in no file; its column is its number, by which mistakes are put in order."""
LARGEST_INTEGER = 10**40
MOST_MISTAKES = 100


def tree_from_mapping(rules: Given[Any, Any]) -> tuple[Node, str]:
    """The tree and a digest of what is in it. ConfigError for what no file could say: `.errors` are all of them."""
    maker = _Maker()
    node = maker.node(rules, "")
    maker.raise_any()
    return node, maker.digest.hexdigest()


class _Maker:
    def __init__(self) -> None:
        self.digest = sha256()
        self._errors: list[ConfigError] = []
        self._around: list[int] = []
        self._number = self._size = 0

    def node(self, value: Any, path: str) -> Node:
        kind = "a mapping" if isinstance(value, Given) else "a list"
        if not isinstance(value, Given | list | tuple):
            return self._scalar(self._text(value, path), not isinstance(value, str))
        if id(value) in self._around:
            self._mistake(path, f"{kind} must not contain itself; write its values out")
            return self._scalar("", True)
        if len(self._around) >= DEEPEST:
            self._mistake(path, f"there is nesting deeper than {DEEPEST}; no rule needs that")
            return self._scalar("", True)
        self._around.append(id(value))
        made: Node
        if isinstance(value, Given):
            made = Mapping(NO_LINE, self._count(b"{", 2), [])
            made.pairs.extend(self._pairs(value, path))
        else:
            made = Sequence(NO_LINE, self._count(b"[", 2), [])
            made.items.extend(self._items(value, path))
        self._count(b"}", 0)
        self._around.pop()
        return made

    def raise_any(self) -> None:
        if self._errors:
            first = self._errors[0]
            error = ConfigError(first.message, path=first.path)
            error.errors = tuple(self._errors)
            raise error

    def _pairs(self, value: Given[Any, Any], path: str) -> Iterable[tuple[Scalar, Node]]:
        for key, item in list(value.items()):
            if isinstance(key, str):
                text = self._text(key, path)
                here = f"{path}.{_short(text)}" if path else _short(text)
                yield self._scalar(text, True), self.node(item, here)
            else:
                got = shown(key) if isinstance(key, int | float | None) else _kind(key)
                write = f'"{key}"' if isinstance(key, int | float) else '"name"'
                self._mistake(path, f"a key must be a str (got {got}); write {write}")

    def _items(self, value: Iterable[Any], path: str) -> Iterable[Node]:
        return (self.node(item, f"{path}[{number}]") for number, item in enumerate(value))

    def _scalar(self, text: str, plain: bool) -> Scalar:
        content = text.encode("utf-8", "backslashreplace")
        self._count(b"%d:%d:" % (plain, len(content)), len(content) + 2)
        self.digest.update(content)
        return Scalar(NO_LINE, self._number, text, plain)

    def _count(self, mark: bytes, size: int) -> int:
        """The number of the next node. What is referred to many times counts many times, as it would fill a file."""
        self.digest.update(mark)
        self._size += size
        if self._size > LARGEST_BYTES:
            self._errors = []
            self._mistake("", "the rules are over 1 MiB; remove what is not needed")
            self.raise_any()
        self._number += 1
        return self._number

    def _text(self, value: Any, path: str) -> str:
        """As YAML has it; what YAML has not is a mistake."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str):
            text = str.__str__(value)
            if not _is_unicode(text):
                self._mistake(
                    path, f"a text must be Unicode (got {shown(text)}); write it without surrogates"
                )
            return text
        if isinstance(value, int) and -LARGEST_INTEGER < value < LARGEST_INTEGER:
            return int.__repr__(value)
        if isinstance(value, float):
            named = ".nan" if isnan(value) else ".inf" if value > 0 else "-.inf"
            return named if isnan(value) or isinf(value) else float.__repr__(value)
        if isinstance(value, date):  # a datetime is one, too
            return datetime.isoformat(value) if isinstance(value, datetime) else value.isoformat()
        got = "an int of over 40 digits" if isinstance(value, int) else _kind(value)
        self._mistake(
            path,
            f"a value must be a str, an int, a bool, a date, a list or a mapping (got {got}); write one of them",
        )
        return ""

    def _mistake(self, path: str, message: str) -> None:
        if len(self._errors) < MOST_MISTAKES:
            self._errors.append(ConfigError(message, path=path or None))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _short(name: str) -> str:
    return name.lower() if name.isprintable() and len(name) <= 40 else shown(name)


def _kind(value: object) -> str:
    """Never its repr, which may be long, or raise."""
    return f"an object of type {type(value).__name__}"
