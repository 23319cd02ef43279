"""YAML as a tree with the position of every node, and without surprises.

No aliases, anchors, tags or merges (a billion laughs), a bounded depth and a bounded size. Scalars stay text: what `yes`, `12:30:45` or
`.nan` means is for the field to decide, not for YAML 1.1. The files of a folder are one document; an error is reported with its own file
and line.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import yaml

from diana.core.errors import ConfigError

LARGEST_BYTES = 1 << 20
DEEPEST = 32

HINTS = {
    "cannot start any token": "; indent with spaces, and put a value that begins with a sign in quotes",
    "mapping values are not allowed": "; put a value with a colon in quotes, or remove the colon",
    "expected <document start>": "; put a value that begins with a sign in quotes",
    "expected alphabetic or numeric": "; put a value that begins with a sign in quotes",
    "could not find expected ':'": "; write a space behind the colon",
}
"""What people usually did, by what the parser says."""

_IN_C = hasattr(yaml, "CSafeLoader")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Scalar(NamedTuple):
    line: int
    column: int
    text: str
    plain: bool
    """Written without quotes."""


class Mapping(NamedTuple):
    line: int
    column: int
    pairs: list[tuple[Scalar, Node]]


class Sequence(NamedTuple):
    line: int
    column: int
    items: list[Node]


Node = Scalar | Mapping | Sequence

NOTHING = Scalar(0, 0, "", True)


def drain(items: list[Node]) -> Iterator[Node]:
    """Each once, and then it is gone: freeing a large document all at once would stop every other thread."""
    for number, item in enumerate(items):
        items[number] = NOTHING
        yield item


def free_gradually(things: list[Any]) -> None:
    """One by one, so that other threads run in between."""
    while things:
        things.pop()


def documents_from_bytes(content: bytes) -> list[Node]:
    """Every document of a file that is not empty."""
    if len(content) > LARGEST_BYTES:
        raise ConfigError("the file is over 1 MiB; remove what is not needed", line=1, column=1)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = _end_of(content[: error.start].decode("utf-8", "replace"))
        raise ConfigError(
            "this is not UTF-8; save the file as UTF-8", line=line, column=column
        ) from None
    try:
        return list(_Parser(text).documents())
    except yaml.MarkedYAMLError as error:
        line, column = _position(_begin_of(error))
        hint = next((hint for sign, hint in HINTS.items() if sign in str(error.problem)), "")
        raise ConfigError(
            f"this is no YAML: {error.problem}{hint}", line=line, column=column
        ) from None
    except yaml.reader.ReaderError as error:
        before = (
            text.encode()[: error.position].decode("utf-8", "ignore")
            if _IN_C
            else text[: error.position]
        )
        line, column = _end_of(before)
        raise ConfigError(
            "a character that YAML does not allow; remove it", line=line, column=column
        ) from None


def _begin_of(error: yaml.MarkedYAMLError) -> Any:
    """Where the mistake begins: an unclosed quote is noticed only at the end of the file."""
    if error.context_mark is not None and str(error.context).startswith(
        ("while scanning", "while parsing a flow")
    ):
        return error.context_mark
    return error.problem_mark


def _end_of(text: str) -> tuple[int, int]:
    """Line and column of what comes next."""
    return text.count("\n") + 1, len(text) - text.rfind("\n")


def _refused(event: yaml.Event, what: str) -> ConfigError:
    line, column = _position(event.start_mark)
    return ConfigError(f"there is {what}", line=line, column=column)


def _position(mark: Any) -> tuple[int, int]:
    """Line and column as people count them."""
    return (1, 1) if mark is None else (mark.line + 1, mark.column + 1)


class _Parser:
    """A tree of the parser's events, with everything unwanted refused on the way.

    A document of ten thousand rules has a hundred thousand scalars: their way through here is short.
    """

    def __init__(self, text: str) -> None:
        self._next: Callable[[], Any] = _Loader(text).get_event

    def documents(self) -> Iterator[Node]:
        while not isinstance(event := self._next(), yaml.StreamEndEvent):
            if isinstance(event, yaml.DocumentStartEvent):
                node = self._node(self._next(), 1)
                if not (isinstance(node, Scalar) and node.plain and not node.text):
                    yield node

    def _node(self, event: Any, depth: int) -> Node:
        kind = type(event)
        if kind is yaml.AliasEvent or event.anchor is not None or event.tag is not None:
            _refuse_surprises(event)
        mark = event.start_mark
        if kind is yaml.ScalarEvent:
            return Scalar(mark.line + 1, mark.column + 1, event.value, not event.style)
        if depth > DEEPEST:
            raise _refused(event, f"nesting deeper than {DEEPEST}; no rule needs that")
        if kind is yaml.SequenceStartEvent:
            return Sequence(mark.line + 1, mark.column + 1, self._items(depth))
        return Mapping(mark.line + 1, mark.column + 1, self._pairs(depth))

    def _items(self, depth: int) -> list[Node]:
        items: list[Node] = []
        while type(event := self._next()) is not yaml.SequenceEndEvent:
            items.append(self._node(event, depth + 1))
        return items

    def _pairs(self, depth: int) -> list[tuple[Scalar, Node]]:
        pairs = []
        while type(event := self._next()) is not yaml.MappingEndEvent:
            key = self._node(event, depth + 1)
            if type(key) is not Scalar:
                raise _refused(event, "a key that is no word; write name: value")
            pairs.append((key, self._node(self._next(), depth + 1)))
        return pairs


def _refuse_surprises(event: Any) -> None:
    if isinstance(event, yaml.AliasEvent):
        raise _refused(event, "an alias (*); write the value out")
    if event.anchor is not None:
        raise _refused(event, "an anchor (&); write the value out where it is needed")
    if event.tag != "!":
        tag = event.tag.replace("tag:yaml.org,2002:", "!!")
        raise _refused(event, f"a tag ({tag}); write the plain value")


MARK = b"# diana: the file "

_MARKED = re.compile(rb"^(?:--- )?" + MARK + rb"(.*)$", re.MULTILINE)


def join_files(parts: list[tuple[str, bytes]]) -> bytes:
    """By name and content."""
    return b"--- ".join(_marked(name, text.removeprefix(BOM_UTF8)) for name, text in parts)


def _marked(name: str, text: bytes) -> bytes:
    end = b"" if text.endswith(b"\n") else b"\n"
    return MARK + ascii(name)[1:-1].encode() + b"\n" + text + end


class SourceLine(NamedTuple):
    file: str
    line: int | None


class SourceMap:
    """Which file of a folder a line came from; of a single document, the document."""

    def __init__(self, name: str, content: bytes) -> None:
        self._name = name
        self._content = content

    def spot(self, line: int | None) -> SourceLine:
        if not line:  # what stands in code has none
            return SourceLine(self._name, None)
        file, before = self._name, 0
        for mark in _MARKED.finditer(self._content):
            at = self._content.count(b"\n", 0, mark.start()) + 1
            if at >= line:  # what is noticed at a mark is that the file before is not finished
                break
            file, before = f"{self._name.rstrip('/')}/{mark[1].decode()}", at
        return SourceLine(file, line - before)
