"""YAML as a tree that knows where everything stands, and nothing that surprises.

No aliases, anchors, tags or merges (a billion laughs), no depth without end, no document without end. Scalars stay text: what `yes`,
`12:30:45` or `.nan` means is for the field to say, not for YAML 1.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from diana.core.errors import ConfigError

LARGEST_BYTES = 1 << 20
DEEPEST = 32

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Scalar:
    line: int
    column: int
    text: str
    plain: bool
    """Written without quotes."""


@dataclass(frozen=True, slots=True)
class Mapping:
    line: int
    column: int
    pairs: list[tuple[Scalar, Node]]


@dataclass(frozen=True, slots=True)
class Sequence:
    line: int
    column: int
    items: list[Node]


Node = Scalar | Mapping | Sequence


def documents_from_bytes(content: bytes) -> list[Node]:
    """Every document of a file that is not empty."""
    if len(content) > LARGEST_BYTES:
        raise ConfigError(
            f"the file has {len(content):,} bytes; the most is {LARGEST_BYTES:,} (1 MiB)",
            line=1,
            column=1,
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise ConfigError(
            "this is not UTF-8; save the file as UTF-8", line=line, column=column
        ) from None
    try:
        return list(_documents(_Events(text)))
    except yaml.MarkedYAMLError as error:
        line, column = _position(error.problem_mark or error.context_mark)
        raise ConfigError(f"this is no YAML: {error.problem}", line=line, column=column) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise ConfigError(
            "a character that YAML does not allow; remove it", line=line, column=column
        ) from None


class _Events:
    """The parser's events, one ahead, with everything unwanted refused on the way."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[yaml.Event] = iter(yaml.parse(text, Loader=_Loader))
        self._depth = 0

    def next(self) -> yaml.Event:
        event = next(self._events)
        if isinstance(event, yaml.AliasEvent):
            raise _refused(event, "an alias (*); write the value out")
        if getattr(event, "anchor", None) is not None:
            raise _refused(event, "an anchor (&); write the value out where it is needed")
        if isinstance(event, yaml.CollectionStartEvent | yaml.ScalarEvent) and event.tag not in (
            None,
            "!",
        ):
            raise _refused(event, f"a tag ({event.tag}); write the plain value")
        if isinstance(event, yaml.CollectionStartEvent):
            self._depth += 1
            if self._depth > DEEPEST:
                raise _refused(event, f"nesting deeper than {DEEPEST}; no rule needs that")
        elif isinstance(event, yaml.CollectionEndEvent):
            self._depth -= 1
        return event


def _refused(event: yaml.Event, what: str) -> ConfigError:
    line, column = _position(event.start_mark)
    return ConfigError(f"there is {what}", line=line, column=column)


def _position(mark: Any) -> tuple[int, int]:
    """Line and column as people count them."""
    return (1, 1) if mark is None else (mark.line + 1, mark.column + 1)


def _documents(events: _Events) -> Iterator[Node]:
    while not isinstance(event := events.next(), yaml.StreamEndEvent):
        if isinstance(event, yaml.DocumentStartEvent):
            node = _node(events, events.next())
            if not (isinstance(node, Scalar) and node.plain and not node.text):
                yield node


def _node(events: _Events, event: yaml.Event) -> Node:
    line, column = _position(event.start_mark)
    if isinstance(event, yaml.ScalarEvent):
        return Scalar(line, column, event.value, not event.style)
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(following := events.next(), yaml.SequenceEndEvent):
            items.append(_node(events, following))
        return Sequence(line, column, items)
    pairs = []
    while not isinstance(following := events.next(), yaml.MappingEndEvent):
        key = _node(events, following)
        if not isinstance(key, Scalar):
            raise _refused(following, "a key that is no word; write name: value")
        pairs.append((key, _node(events, events.next())))
    return Mapping(line, column, pairs)
