"""Which header lines go on, in both directions.

Lines that belong to one connection stay on it: those that HTTP names. What `Connection` names besides goes on: else a client could have its
account counted and taken off again before the upstream sees it. What says where a request came from is the gateway's to say: from a client
it is replaced, from a trusted proxy it is added to. Names with `_` stay here: servers that make variables of names take `X_Account_Id` for
`X-Account-Id`, which the rules did not see.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import NamedTuple

from diana.core.client_address import LONGEST, Proxies, ip_from_text
from diana.core.errors import ConfigError
from diana.core.request import checked_token
from diana.web.asgi_types import Scope

HeaderLines = list[tuple[str, str]]

HOP_BY_HOP = frozenset(
    {
        b"connection", b"http2-settings", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
ANSWERED_HERE = frozenset({b"expect"})
"""The gateway says `100 Continue` itself, once the body is wanted."""
OF_A_HANDSHAKE = frozenset(
    {b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions", b"sec-websocket-protocol", b"sec-websocket-accept"}
)  # fmt: skip
FORWARDED = frozenset({b"forwarded", b"x-real-ip"})
FORWARDED_PREFIX = b"x-forwarded-"
STAY = HOP_BY_HOP | ANSWERED_HERE
ORDINARY = {b"close", b"keep-alive", b"upgrade", b"te", b""}
"""What `Connection` usually names: they stay anyway."""
BODILESS = (204, 304)
TELLS_LENGTH = frozenset({"1.1", "1.0"})
"""Versions of HTTP in which the head says whether there is a body."""

_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class Forwarded(NamedTuple):
    """What goes to the upstream."""

    lines: HeaderLines
    length: int
    """Of the body; 0 if there is none, -1 if it is not known before it ends: chunked, or HTTP/2 without `Content-Length`."""
    coding: bytes
    """`Transfer-Encoding`, if there is one."""
    protocols: list[str]
    """What a WebSocket's client speaks."""


class RequestLines:
    """From the lines of a client to those for the upstream."""

    def __init__(
        self, proxies: Proxies, own_host: bool = False, underscores: Collection[str] = ()
    ) -> None:
        """`underscores`: names with `_` that go on all the same; see `checked_underscores`."""
        self._proxies = proxies
        self._own_host = own_host
        self._underscores = frozenset(name.encode("ascii") for name in underscores)

    def of(self, scope: Scope) -> Forwarded:
        client = scope.get("client")
        peer: str | None = client[0] if client else None
        trusted = self._proxies.trusts(peer)
        websocket = scope["type"] == "websocket"
        lines: HeaderLines = []
        said: dict[bytes, list[bytes]] = {}
        host = coding = b""
        # From HTTP/2 on, a body needs no line that announces it.
        length = 0 if scope["http_version"] in TELLS_LENGTH else -1
        protocols: list[str] = []
        for name, value in scope["headers"]:
            if name in STAY:
                if name == b"transfer-encoding":
                    coding, length = coding + b"," + value if coding else value, -1
                continue
            if b"_" in name and name not in self._underscores:
                continue
            if name == b"host":
                host = value
                if self._own_host:
                    continue
            elif name == b"content-length":
                if not coding:
                    length = int(value)
            elif name in FORWARDED or name[:12] == FORWARDED_PREFIX:
                if trusted:
                    said.setdefault(name, []).append(value)
                continue
            elif websocket and name in OF_A_HANDSHAKE:
                if name == b"sec-websocket-protocol":
                    protocols += [part.strip() for part in _text(value).split(",")]
                continue
            lines.append((name.decode("latin-1"), _text(value)))
        if length < 0:
            lines = [line for line in lines if line[0] != "content-length"]
        lines += self._whence(scope["scheme"], peer, host, said)
        return Forwarded(lines, length, coding.strip().lower(), protocols)

    def _whence(
        self, scheme: str, peer: str | None, host: bytes, said: dict[bytes, list[bytes]]
    ) -> HeaderLines:
        """Who asked, by which scheme, for which host."""
        proto = "https" if scheme in ("https", "wss") else "http"
        address, node = _spelled("" if peer is None else peer[:LONGEST])
        asked = _text(host)
        if not said:
            lines = [
                ("x-forwarded-for", address),
                ("x-forwarded-proto", proto),
                ("forwarded", _element(node, asked, proto)),
            ]
            return [*lines, ("x-forwarded-host", asked)] if asked else lines
        before = {name: _text(b", ".join(values)) for name, values in said.items()}
        hops = before.pop(b"x-forwarded-for", "")
        lines = [("x-forwarded-for", f"{hops}, {address}" if hops else address)]
        before.setdefault(b"x-forwarded-proto", proto)
        if asked:
            before.setdefault(b"x-forwarded-host", asked)
        # A list that only we begin would make the proxy before us the client.
        elements = before.pop(b"forwarded", "")
        if elements:
            lines.append(("forwarded", f"{elements}, {_element(node, asked, proto)}"))
        return lines + [(name.decode("latin-1"), value) for name, value in before.items()]


def response_lines(raw: Iterable[tuple[bytes, bytes]], status: int) -> list[tuple[bytes, bytes]]:
    """From the lines of an upstream to those for the client; ValueError if no client may get such a head."""
    if not 200 <= status <= 599:
        # Nobody asked for another protocol, and there is no other status.
        raise ValueError(f"status {status}")
    lines = []
    connection: list[bytes] = []
    for name, value in raw:
        name = name.lower()
        if name in HOP_BY_HOP:
            if name == b"connection":
                connection.append(value)
            elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                # Another coding is not undone here, and the client would not learn of it.
                raise ValueError("a transfer coding other than chunked")
        elif name != b"content-length" or status not in BODILESS:
            lines.append((name, value))
    if _CONTROL.search(b"".join([value for _, value in lines])):
        raise ValueError("control characters")
    named = _named(connection) if connection else None
    if named:
        lines = [line for line in lines if line[0] not in named or line[0] == b"content-length"]
    return lines


def _named(connection: list[bytes]) -> set[bytes]:
    words = {word.strip().lower() for value in connection for word in value.split(b",")}
    return words - ORDINARY


def checked_underscores(names: Iterable[str]) -> frozenset[str]:
    """Names with `_` that may go on, in small letters; ConfigError for what no upstream may get from a client."""
    checked = frozenset(checked_token(name, "X_Trace_Id").lower() for name in names)
    for name in sorted(checked):
        if "_" not in name:
            raise ConfigError(f"{name} has no underscore, so it is forwarded anyway; leave it out")
        if _is_disguised(name.encode()):
            raise ConfigError(
                f"{name} is {name.replace('_', '-')} to some servers, which only the gateway may set; leave it out"
            )
    return checked


def _is_disguised(name: bytes) -> bool:
    """Servers that make variables of names take `X_Forwarded_For` for `X-Forwarded-For`."""
    meant = name.replace(b"_", b"-")
    return (
        meant in STAY
        or meant in FORWARDED
        or meant.startswith(FORWARDED_PREFIX)
        or meant == b"content-length"
    )


def _text(value: bytes) -> str:
    """As the client for the upstream writes it again: the same bytes if they are UTF-8, else Latin-1 as UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


@lru_cache(8_192)
def _spelled(peer: str) -> tuple[str, str]:
    """An address for `X-Forwarded-For`, and for `Forwarded`."""
    address = ip_from_text(peer)
    if address is None:
        return "unknown", "unknown"
    text = str(address)
    return text, f'"[{text}]"' if address.version == 6 else text


def _element(node: str, host: str, proto: str) -> str:
    if not host:
        return f"for={node};proto={proto}"
    if '"' in host or "\\" in host:
        host = host.replace("\\", "\\\\").replace('"', '\\"')
    return f'for={node};host="{host}";proto={proto}'
