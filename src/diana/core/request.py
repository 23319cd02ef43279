"""A request: all that a rule may look at. Nothing is parsed before a rule asks for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import unquote_plus

from diana.core.errors import ConfigError, shown
from diana.core.path import segments_of_path

MOST_FIELDS = 1_000
"""Query parameters and cookies looked at: a client may send a million."""

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class Request:
    """`Request("GET", "/search", {"X-Account-Id": "alice"}, "q=shoes", peer="203.0.113.9")`.

    `path` is as it was sent, still percent-encoded; `query` is what stood behind the `?`; `peer` is the address of the socket.
    """

    __slots__ = ("_fields", "_segments", "headers", "method", "path", "peer", "query")

    def __init__(
        self,
        method: str = "GET",
        path: str = "/",
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        query: str = "",
        peer: str | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.query = query
        self.peer = peer
        self._segments: tuple[str, ...] | None = None
        self._fields: dict[str, tuple[str, ...]] | None = None

    def __repr__(self) -> str:
        return f"Request({self.method!r}, {self.path!r}, peer={self.peer!r})"

    @property
    def segments(self) -> tuple[str, ...]:
        """The path in its one canonical spelling."""
        if self._segments is None:
            self._segments = segments_of_path(self.path)
        return self._segments

    def header_lines(self, name: str) -> tuple[str, ...]:
        """Every line of a header, in order; the name in lower case."""
        return (self._fields or self._read_headers()).get(name, ())

    def header(self, name: str) -> str | None:
        """The one value of a header; None if there is none, or two that contradict each other."""
        lines = (self._fields or self._read_headers()).get(name)
        if lines is None:
            return None
        return (lines[0].strip() or None) if len(lines) == 1 else _one(lines)

    def _read_headers(self) -> dict[str, tuple[str, ...]]:
        fields: dict[str, tuple[str, ...]] = {}
        headers = self.headers
        # A dictionary is told at once; asking whether something is a Mapping costs as much as reading two headers.
        if headers.__class__ is dict or isinstance(headers, Mapping):
            headers = headers.items()
        for field, value in headers:
            name = field.lower()
            fields[name] = (*fields[name], value) if name in fields else (value,)
        self._fields = fields
        return fields

    def query_value(self, name: str) -> str | None:
        """The one value of a query parameter."""
        found = []
        for field in self.query.split("&", MOST_FIELDS)[:MOST_FIELDS]:
            key, _, value = field.partition("=")
            if key == name or unquote_plus(key) == name:
                found.append(unquote_plus(value, errors="surrogateescape"))
        return _one(found)

    def cookie(self, name: str) -> str | None:
        """The one value of a cookie."""
        found = []
        for line in self.header_lines("cookie"):
            for field in line.split(";", MOST_FIELDS)[:MOST_FIELDS]:
                key, _, value = field.partition("=")
                if key.strip() == name:
                    found.append(value.strip('" '))
        return _one(found)


def checked_token(name: str, example: str) -> str:
    """A header's or a cookie's name, as HTTP allows it."""
    if not _TOKEN.fullmatch(name):
        raise ConfigError(f"{shown(name)} is no name that HTTP allows; write one such as {example}")
    return name


def _one(values: Sequence[str]) -> str | None:
    """Who says two things says nothing: a client must not choose which of them is counted."""
    given = {value.strip() for value in values}
    given.discard("")
    return given.pop() if len(given) == 1 else None
