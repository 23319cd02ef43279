"""Rules from a web server: asked again every second, or as often as its Cache-Control says, by If-None-Match.

`https://config.example/diana.yaml`. If DIANA_RULES_AUTHORIZATION is set in the environment, it is sent as the Authorization header. What a
server may do is bounded: an answer of 1 MiB, two seconds in all however slowly it drips, and no redirect to another host.
"""

from __future__ import annotations

import http.client
import io
import os
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from threading import Event
from time import monotonic
from typing import Any, NamedTuple, cast
from urllib.parse import SplitResult, urljoin, urlsplit

from diana.core.contracts import Revision
from diana.core.errors import ConfigError, SourceError
from diana.rules.document.yaml_tree import LARGEST_BYTES

TIMEOUT_SECONDS = 2.0
POLL_SECONDS, LONGEST_POLL_SECONDS = 1.0, 60.0
MOST_REDIRECTS = 3
AUTHORIZATION = "DIANA_RULES_AUTHORIZATION"
PIECE = 1 << 16
REDIRECTS = (301, 302, 303, 307, 308)
DEFAULT_PORTS = {"http": 80, "https": 443}

_MAX_AGE = re.compile(r"\bmax-age=([0-9]{1,9})")


class HttpReply(NamedTuple):
    status: int
    etag: str
    poll_again: float
    text: bytes


class TooLarge(Exception):
    """More than a document may be."""


class Unbounded(Exception):
    """An answer that may have been cut anywhere."""


class HttpSource:
    def __init__(self, url: str) -> None:
        self.check_url(url)
        self._url = url
        self._shown = url.partition("?")[0]  # what is behind it may be secret
        self._closed = Event()
        self._etag = ""
        self._poll_again = POLL_SECONDS
        self._tls = ssl.create_default_context() if _is_secure(urlsplit(url)) else None

    @classmethod
    def from_url(cls, url: str) -> HttpSource:
        return cls(url)

    @staticmethod
    def check_url(url: str) -> None:
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError:
            # Not what the error says: it may show a part of a password.
            raise ConfigError(
                "the URL of the rules cannot be read; write https://host:port/path"
            ) from None
        if not parts.hostname or not url.isascii() or any(sign <= " " for sign in url):
            raise ConfigError("the URL of the rules names no host; write https://host/path")
        if parts.username or parts.password:
            raise ConfigError(
                f"no user or password in the URL of the rules; set {AUTHORIZATION} in the environment"
            )

    def load(self) -> Revision:
        answer = self._ask("")
        if answer.status != http.client.OK:
            raise SourceError(f"{self._shown}: answered {answer.status}")
        self._etag, self._poll_again = answer.etag, answer.poll_again
        return Revision(answer.text, answer.etag or sha256(answer.text).hexdigest())

    def watch(self, known: Revision) -> Iterator[Revision]:
        while not self._closed.wait(self._poll_again):
            answer = self._ask(self._etag)
            self._poll_again = answer.poll_again
            if answer.status == http.client.NOT_MODIFIED:
                continue
            if answer.status != http.client.OK:
                raise SourceError(f"{self._shown}: answered {answer.status}")
            self._etag = answer.etag
            if answer.text != known.text:
                known = Revision(answer.text, answer.etag or sha256(answer.text).hexdigest())
                yield known

    def close(self) -> None:
        self._closed.set()

    def publish(self, text: bytes, seen: Revision | None) -> Revision:
        """By PUT, if the server takes it, on condition that nothing has changed."""
        if seen is not None and not self._etag:
            raise SourceError(
                f"{self._shown}: sends no ETag, so concurrent changes cannot be detected; write there by other means"
            )
        condition = {"If-None-Match": "*"} if seen is None else {"If-Match": seen.version}
        answer = self._send(
            "PUT", self._url, {**condition, "Content-Type": "application/yaml"}, text
        )
        if answer.status in (http.client.PRECONDITION_FAILED, http.client.CONFLICT):
            raise SourceError(f"{self._shown} has changed since it was read; run the command again")
        if answer.status not in (200, 201, 204):
            raise SourceError(
                f"{self._shown}: cannot be written: answered {answer.status} to a PUT"
            )
        return self.load()

    def previous(self) -> Revision:
        raise SourceError(
            "a web server keeps no previous edition that we know of; push the old file"
        )

    def _ask(self, etag: str) -> HttpReply:
        """Follow redirects, on the same host only."""
        url = self._url
        for _ in range(1 + MOST_REDIRECTS):
            answer = self._send("GET", url, {"If-None-Match": etag} if etag else {}, None)
            if answer.status not in REDIRECTS:
                return answer
            url = self._redirected(url, answer.text.decode("latin-1"))
        raise SourceError(f"{self._shown}: too many redirects")

    def _redirected(self, url: str, location: str) -> str:
        try:
            target = urljoin(url, location)
            elsewhere = _origin(urlsplit(target)) != _origin(urlsplit(self._url))
        except ValueError:  # which may quote a secret
            raise SourceError(f"{self._shown}: redirects to an invalid URL") from None
        if elsewhere:
            raise SourceError(
                f"{self._shown}: redirects to another host; write that URL if it is meant"
            )
        if not target.isascii() or any(sign <= " " or sign == "\x7f" for sign in target):
            raise SourceError(f"{self._shown}: redirects to an invalid URL")
        return target

    def _send(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None
    ) -> HttpReply:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORTS[parts.scheme]
        host = parts.hostname or ""
        connection: http.client.HTTPConnection
        if _is_secure(parts):
            connection = http.client.HTTPSConnection(
                host, port, timeout=TIMEOUT_SECONDS, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
        sent = {"Accept": "application/yaml, text/yaml, */*", "User-Agent": "diana", **headers}
        if authorization := _authorization():
            sent["Authorization"] = authorization
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection.response_class = _response_before(monotonic() + TIMEOUT_SECONDS)
            connection.request(method, target, body, sent)
            with closing(connection.getresponse()) as response:
                return _read(response)
        except TimeoutError:
            raise SourceError(
                f"{self._shown}: no complete answer within {TIMEOUT_SECONDS:g} s"
            ) from None
        except http.client.IncompleteRead:
            raise SourceError(f"{self._shown}: the answer broke off") from None
        except (OSError, http.client.HTTPException, ValueError, TooLarge, Unbounded) as error:
            said = str(error) or type(error).__name__
            raise SourceError(f"{self._shown}: {said}") from None
        finally:
            connection.close()


def _authorization() -> str:
    """What the environment says; a file that it was read from may have ended with a new line."""
    value = os.environ.get(AUTHORIZATION, "").strip()
    if not (value.isascii() and value.isprintable()):
        raise SourceError(
            f"{AUTHORIZATION} holds a sign that no header may hold; write printable ASCII on one line"
        )
    return value


def _response_before(deadline: float) -> Any:
    """An answer that has to be there by then, its headers and all: a time-out alone begins anew with every byte."""

    def response(sock: socket.socket, **options: Any) -> http.client.HTTPResponse:
        return http.client.HTTPResponse(
            cast("socket.socket", _DeadlineReader(sock, deadline)), **options
        )

    return response


class _DeadlineReader(io.RawIOBase):
    """A socket to read from, until the deadline."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline
        self._raw = sock.makefile("rb", buffering=0)

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _read(response: http.client.HTTPResponse) -> HttpReply:
    if response.status in REDIRECTS:
        location = (response.getheader("Location") or "").encode("latin-1")
        return HttpReply(response.status, "", POLL_SECONDS, location)
    bounded = response.chunked or response.length is not None
    pieces, size = [], 0
    while piece := response.read1(PIECE):
        size += len(piece)
        if size > LARGEST_BYTES:
            raise TooLarge(f"more than {LARGEST_BYTES:,} bytes; split the rules")
        pieces.append(piece)
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    if response.status == http.client.OK and not bounded:
        raise Unbounded(
            "sends neither Content-Length nor chunks, so a truncated document cannot be told from a whole one"
        )
    age = _MAX_AGE.search((response.getheader("Cache-Control") or "").lower())
    poll_again = (
        min(LONGEST_POLL_SECONDS, max(POLL_SECONDS, float(age[1]))) if age else POLL_SECONDS
    )
    return HttpReply(
        response.status, response.getheader("ETag") or "", poll_again, b"".join(pieces)
    )


def _is_secure(parts: SplitResult) -> bool:
    return parts.scheme == "https"


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or DEFAULT_PORTS.get(parts.scheme)
