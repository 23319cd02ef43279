"""Several servers with the same contents: one is queried until it fails, then the next.

`scheme://[user:password@]host:port,host:port/path[?options]`. A URL may hold a password, so no message ever shows one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from threading import Event
from typing import NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from diana.core.contracts import Revision
from diana.core.errors import ConfigError, SourceError, shown

ESCAPED = (
    "in a user, a password or a value, write / as %2F, ? as %3F, # as %23, @ as %40 and % as %25"
)


class Endpoint(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BackendAddress:
    """Servers that know the same, and where among all they know the rules are."""

    scheme: str
    endpoints: tuple[Endpoint, ...]
    path: str
    """With its leading slash."""
    user: str
    password: str
    options: Mapping[str, str]


def address_from_url(url: str, example: str, known: Mapping[str, str]) -> BackendAddress:
    """What a URL says; `known` are its options, each with an example."""
    scheme, colon, rest = url.partition("://")
    try:
        # Without the scheme, so that urlsplit treats all alike; several hosts are split below.
        parts = urlsplit(f"//{rest}")
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:  # which may quote a password
        raise ConfigError(f"the URL of the rules cannot be read; {ESCAPED}") from None
    refuse_unescaped(rest)
    credentials, _, hosts = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    if not colon or not hosts:
        raise ConfigError(f"the URL of the rules names no host; write {example}")
    path = unquote(parts.path)
    if not path.strip("/"):
        raise ConfigError(f"the URL of the rules has no path; write it after the hosts: {example}")
    return BackendAddress(
        scheme.lower(),
        tuple(_endpoint(host, example) for host in hosts.split(",")),
        path,
        unquote(user),
        unquote(password),
        _options(given, known),
    )


def shown_url(url: str) -> str:
    """Without what may be secret in it; a path is one already."""
    scheme, colon, rest = url.partition("://")
    return url if not colon else f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def refuse_unescaped(rest: str) -> None:
    """What stands behind the ://, if a sign in a password ends the hosts too early: part of it would be taken for a host, and shown."""
    behind = "".join(re.split("([/?#])", rest, maxsplit=1)[1:])
    if "#" in behind or "@" in behind:
        raise ConfigError(f"the URL of the rules has an unescaped character; {ESCAPED}")


def _options(given: list[tuple[str, str]], known: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in given:
        if name not in known:
            there_is = f"there is {', '.join(known)}" if known else "there is none"
            raise ConfigError(f"{shown(name)} is no option of this URL of rules; {there_is}")
        if name in options or not value:
            raise ConfigError(f"write {name} once in the URL of the rules: {known[name]}")
        options[name] = value
    return options


def _endpoint(text: str, example: str) -> Endpoint:
    host, colon, port = text.rpartition(":")
    host = unquote(host.removeprefix("[").removesuffix("]"))
    if not colon or not host or not (port.isascii() and port.isdecimal() and len(port) <= 5):
        raise ConfigError(f"write every host of the rules with its port, such as {example}")
    if not 0 < int(port) < 65536:
        raise ConfigError("a port in the URL of the rules is no number from 1 to 65535")
    if any(sign <= " " for sign in host):
        raise ConfigError(f"a host in the URL of the rules has a space in it; write {example}")
    return Endpoint(host, int(port))


RELOAD_SECONDS = 0.5
"""Before everything is read anew. Where watching fails and reading does not, the rules are polled at this pace."""

Answer = TypeVar("Answer")


class ServerLost(SourceError):
    """This server does not reply, or with nonsense; another one may."""


class Servers:
    def __init__(self, endpoints: tuple[Endpoint, ...]) -> None:
        self._endpoints = endpoints
        self._index = 0
        self.closed = Event()

    @property
    def current(self) -> Endpoint:
        return self._endpoints[self._index % len(self._endpoints)]

    def skip(self, endpoint: Endpoint) -> None:
        """Ask the next one from now on."""
        if endpoint == self.current:
            self._index += 1

    def ask(self, request: Callable[[Endpoint], Answer]) -> Answer:
        """The first answer; if there is none, the error of every server."""
        errors = []
        for _ in self._endpoints:
            endpoint = self.current
            try:
                return request(endpoint)
            except ServerLost as error:
                errors.append(f"{endpoint}: {error}")
                self.skip(endpoint)
            if self.closed.is_set():
                break
        raise SourceError("; ".join(errors))

    def follow(
        self,
        known: Revision,
        changes_after: Callable[[Endpoint, Revision], Iterator[Revision]],
        load: Callable[[], Revision],
    ) -> Iterator[Revision]:
        """Every edition after `known`.

        `changes_after` waits for them, and ends when it cannot tell any more: the server is lost, has forgotten what was in
        between, or the rules were deleted. Then what is there now is loaded, from the first server that answers.
        """
        while not self.closed.is_set():
            endpoint = self.current
            try:
                for edition in changes_after(endpoint, known):
                    known = edition
                    yield edition
            except ServerLost:
                self.skip(endpoint)
            if self.closed.wait(RELOAD_SECONDS):
                return
            edition = load()
            if edition.version != known.version:
                known = edition
                yield edition
