"""A request: all that a rule may look at. Nothing is parsed before a rule asks for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import unquote_plus

from diana.core.errors import ConfigError
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
        fields = self._fields
        if fields is None:
            self._fields = fields = {}
            headers = self.headers
            for field, value in headers.items() if isinstance(headers, Mapping) else headers:
                lower = field.lower()
                fields[lower] = (*fields[lower], value) if lower in fields else (value,)
        return fields.get(name, ())

    def header(self, name: str) -> str | None:
        """The one value of a header; None if there is none, or two that contradict each other."""
        lines = self.header_lines(name)
        if len(lines) == 1:
            return lines[0].strip() or None
        return _one(lines) if lines else None

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
        raise ConfigError(f"{name!r} is no name that HTTP allows; write one such as {example}")
    return name


def _one(values: Sequence[str]) -> str | None:
    """Who says two things says nothing: a client must not choose which of them is counted."""
    given = {value.strip() for value in values}
    given.discard("")
    return given.pop() if len(given) == 1 else None
