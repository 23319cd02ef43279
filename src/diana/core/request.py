"""A request: all that a rule may look at. Nothing is parsed before a rule asks for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote_plus

from diana.core.errors import ConfigError, shown
from diana.core.path_readings import PathReading, segments_of_path

if TYPE_CHECKING:
    from diana.core.contracts import Observer
    from diana.core.verdict import Verdict

MOST_FIELDS = 1_000
"""Query parameters and cookies looked at: a client may send a million."""

_ESCAPED = re.compile(r"\\(?:([0-3][0-7][0-7])|(.))", re.DOTALL)
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class Report(Protocol):
    """Collects what guards decide for one request, so that observers are called once for it, when its outcome is known."""

    @property
    def is_sent(self) -> bool: ...

    def add(self, observers: Sequence[Observer], verdict: Verdict) -> None: ...

    def send(self) -> None: ...


class Request:
    """`Request("GET", "/search", {"X-Account-Id": "alice"}, "q=shoes", peer="203.0.113.9")`.

    `path` is as it was sent, still percent-encoded; `query` is what stood behind the `?`; `peer` is the address of the socket; `mount`
    is where the application is mounted (`root_path`, `SCRIPT_NAME`), be it part of the path or not.
    """

    __slots__ = (
        "_fields",
        "_segments",
        "found",
        "function_errors",
        "headers",
        "identities",
        "identity_errors",
        "method",
        "mount",
        "path",
        "peer",
        "query",
        "report",
        "shadow_listed",
    )

    found: dict[str, Any]
    """What functions of a route's limit said of it; not there where it has none."""
    report: Report
    """Set while a middleware or a route handles the request for guards that have observers; otherwise observers are called at once."""

    def __init__(
        self,
        method: str = "GET",
        path: str = "/",
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        query: str = "",
        peer: str | None = None,
        mount: str = "",
    ) -> None:
        self.method = method
        self.path = path
        self.mount = mount
        self.headers = headers
        self.query = query
        self.peer = peer
        self.identities: dict[str, str | Exception | None] | None = None
        """What code found out about who is asking, by kind (`account`, `device`): it wins over the rules file. None: nothing was asked."""
        self.identity_errors: dict[tuple[str, str], Exception] | None = None
        """Why an identity could not be found, by the name of the rule and by what the identity is. None: nothing failed."""
        self.function_errors: dict[tuple[str, str], Exception] | None = None
        """What `cost`, `limit` and `allow` in code raised, by the name of the rule and the function. None: nothing."""
        self.shadow_listed: dict[str, str] | None = None
        """What of the `deny` list of a rule in the shadow the request is, by the rule's name. None: no such list has it."""
        self._segments: tuple[str, ...] | None = None
        self._fields: dict[str, str | list[str]] | None = None

    def __repr__(self) -> str:
        return f"Request({self.method!r}, {self.path!r}, peer={self.peer!r})"

    @property
    def segments(self) -> tuple[str, ...]:
        """The canonical reading of the path; while a rule counts by another one, that."""
        if self._segments is None:
            self._segments = segments_of_path(self.path)
        return self._segments

    def read_as(self, reading: PathReading | None) -> None:
        """Another reading of the path; None: the canonical one."""
        self._segments = reading

    def detach(self) -> None:
        """Let go of what it came in, such as a scope: the verdict that is put there holds this request, and nothing would free the two."""

    def header_lines(self, name: str) -> list[str]:
        """Every line of a header, in order; the name in lower case."""
        lines = (self._fields or self._read_headers()).get(name, [])
        return [lines] if isinstance(lines, str) else lines

    def header(self, name: str) -> str | None:
        """The one value of a header; None if there is none."""
        lines = (self._fields or self._read_headers()).get(name)
        if isinstance(lines, str):
            return lines.strip() or None
        return None if lines is None else one_of(lines)

    def _read_headers(self) -> dict[str, str | list[str]]:
        """By name; a list only where a header comes twice, so that what remains of most requests is nothing but strings."""
        fields: dict[str, str | list[str]] = {}
        headers: Any = self.headers
        # A dictionary is told at once; asking whether something is a Mapping costs as much as reading two headers.
        if headers.__class__ is dict or isinstance(headers, Mapping):
            headers = headers.items()
        for field, value in headers:
            if field.__class__ is bytes:
                field, value = field.decode("latin-1"), value.decode("latin-1")
            name = field.lower()
            if name not in fields:
                fields[name] = value
            elif isinstance(lines := fields[name], list):
                lines.append(value)
            else:
                fields[name] = [lines, value]
        self._fields = fields
        return fields

    def query_value(self, name: str) -> str | None:
        """The one value of a query parameter."""
        fields = self.query.split("&", MOST_FIELDS)
        found = []
        for field in fields[:MOST_FIELDS]:
            key, _, value = field.partition("=")
            if key == name or unquote_plus(key) == name:
                found.append(unquote_plus(value, errors="surrogateescape"))
        return one_of(found, complete=len(fields) <= MOST_FIELDS)

    def cookie(self, name: str) -> str | None:
        """The one value of a cookie."""
        found = []
        complete = True
        for line in self.header_lines("cookie"):
            fields = line.split(";", MOST_FIELDS)
            complete = complete and len(fields) <= MOST_FIELDS
            for field in fields[:MOST_FIELDS]:
                key, _, value = field.partition("=")
                if key.strip() == name:
                    found.append(_unquoted(value.strip()))
        return one_of(found, complete)


class Contradiction(Exception):
    """A request says two things at once, or more than can be looked at; it is not the same as saying nothing."""


def printable(text: str) -> str:
    """What a client sent, safe to print: no lines or colours of its own, and no novel."""
    short = text if len(text) <= 200 else f"{text[:197]}..."
    return short if short.isprintable() else ascii(short)[1:-1]


def checked_token(name: str, example: str) -> str:
    """A header's or a cookie's name, as HTTP allows it."""
    if not _TOKEN.fullmatch(name):
        raise ConfigError(f"{shown(name)} is no name that HTTP allows; write one such as {example}")
    return name


def one_of(values: Sequence[str], complete: bool = True) -> str | None:
    """Who says two things must not choose which of them is counted."""
    if len(values) == 1 and complete:
        return values[0].strip() or None
    different = {value.strip() for value in values}
    different.discard("")
    if len(different) > 1 or not complete:
        raise Contradiction
    return different.pop() if different else None


def _unquoted(value: str) -> str:
    """A cookie in quotes may escape its letters, and is the same cookie."""
    if len(value) < 2 or not (value[0] == value[-1] == '"'):
        return value
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)) if found[1] else found[2], value[1:-1])
