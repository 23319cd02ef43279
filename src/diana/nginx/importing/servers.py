"""Which server serves a request: by the socket it came in on, then by its Host.

A rule sees the Host and no socket. So for each host that servers name, and for all others together, there are the servers that may serve
it: one for each socket. Where a name is a pattern, each server that has one may serve a host that is not named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from diana.core.errors import shown
from diana.nginx.importing.configuration import Directive
from diana.nginx.importing.limits import Level
from diana.nginx.importing.locations import Location, read_locations
from diana.nginx.importing.notes import Notes
from diana.nginx.importing.zones import Zones

OTHERS = ""
"""All hosts that no server names."""
_PORT = re.compile(r"[0-9]{1,5}(?:-[0-9]{1,5})?")
_FLAGS = ("default_server", "default")


@dataclass(eq=False)
class Server:
    directive: Directive
    names: tuple[str, ...]
    """In lower case: plain ones, `*.` and `.*` patterns, and expressions."""
    sockets: dict[str, bool]
    """On which it is the default."""
    root: Location

    @property
    def name(self) -> str:
        """`$server_name`: the first name, as it is written."""
        for one in self.directive.each("server_name"):
            return one.args[0].lstrip(".") if one.args else ""
        return ""


class Host(NamedTuple):
    """One that is named, or all others."""

    name: str
    servers: tuple[Server, ...]
    """Those that may serve it."""


def read_servers(http: Directive, above: Level, zones: Zones, notes: Notes) -> list[Server]:
    found = [
        Server(one, _names(one), _sockets(one), read_locations(one, above, zones, notes))
        for one in http.each("server")
        if one.has_block
    ]
    if found:
        return found
    root = read_locations(http._replace(block=()), above, zones, notes)
    return [Server(http, (), {"*:80": True}, root)]


def hosts_of_servers(servers: list[Server]) -> list[Host]:
    """The named ones in the order of the file, then all others."""
    named = [name for server in servers for name in server.names if _is_plain(name)]
    sockets = dict.fromkeys(socket for server in servers for socket in server.sockets)
    hosts = []
    for name in (*dict.fromkeys(named), OTHERS):
        found = [
            server
            for socket in sockets
            for server in _serving([one for one in servers if socket in one.sockets], socket, name)
        ]
        hosts.append(Host(name, tuple(dict.fromkeys(found))))
    return hosts


def _serving(listening: list[Server], socket: str, host: str) -> list[Server]:
    """The one that serves a host, and those of which an expression may match it."""
    if host != OTHERS:
        exact = next((one for one in listening if host in one.names), None)
        if exact is not None:
            return [exact]
        matching = [(name, one) for one in listening for name in one.names if _matches(name, host)]
        if matching:
            return [max(matching, key=_precedence)[1]]
    default = next((one for one in listening if one.sockets[socket]), listening[0])
    patterns = [
        one
        for one in listening
        if any(
            name.startswith("~") or (host == OTHERS and not _is_plain(name)) for name in one.names
        )
    ]
    return [default, *(one for one in patterns if one is not default)]


def _precedence(found: tuple[str, Server]) -> tuple[bool, int]:
    """Patterns with the star in front win; of alike ones the longest."""
    name, _ = found
    return not name.endswith(".*"), len(name)


def _matches(pattern: str, host: str) -> bool:
    if pattern.startswith("*."):
        return host.endswith(pattern[1:]) and len(host) >= len(pattern)
    if pattern.endswith(".*"):
        return host.startswith(pattern[:-1]) and len(host) >= len(pattern)
    return False


def _is_plain(name: str) -> bool:
    return not (name.startswith(("~", "*.")) or name.endswith(".*"))


def _names(server: Directive) -> tuple[str, ...]:
    found: list[str] = []
    for one in server.each("server_name"):
        for name in one.arguments(1, 10_000, "server_name example.com;"):
            if name.startswith("."):
                found += [name[1:].lower(), f"*{name.lower()}"]
            elif name.startswith("~"):
                found.append(name)
            elif name not in ("", "_"):
                found.append(name.lower().rstrip("."))
    return tuple(dict.fromkeys(filter(None, found)))


def _sockets(server: Directive) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for one in server.each("listen"):
        address, *flags = one.arguments(1, 100, "listen 80;")
        is_default = any(flag in _FLAGS for flag in flags)
        for socket in _sockets_of_address(one, address):
            key = f"{socket} by UDP" if "quic" in flags else socket
            found[key] = found.get(key, False) or is_default
    return found or {"*:80": False}


def _sockets_of_address(one: Directive, address: str) -> Iterable[str]:
    if address.startswith("unix:"):
        return [address]
    host, port = "*", address
    if not _PORT.fullmatch(address):
        bracket = address.rfind("]")
        colon = address.rfind(":")
        host, port = (address[:colon], address[colon + 1 :]) if colon > bracket else (address, "80")
        host = {"0.0.0.0": "*", "": "*", "localhost": "127.0.0.1"}.get(  # noqa: S104
            host.lower(), host.lower()
        )
    if not _PORT.fullmatch(port):
        raise one.mistake(f"listen must have a port (got {shown(address)}); write listen 80;")
    first, _, last = port.partition("-")
    ports = range(int(first), int(last or first) + 1)
    if not ports or ports[0] < 1 or ports[-1] > 65_535:
        raise one.mistake(f"listen must have a port from 1 to 65535 (got {shown(address)})")
    return [f"{host}:{number}" for number in ports]
