"""How a store is written: `redis://`, `rediss://`, `unix://`, `redis+sentinel://`, `redis+cluster://`; `valkey…` likewise.

    redis://[user:password@]host[:port][/db][?options]
    unix://[user:password@]/path/of.sock[?options]
    redis+sentinel://[user:password@]host:port,host:port/service[/db][?options]
    redis+cluster://[user:password@]host:port,host:port[?options]

`rediss`, `rediss+sentinel` and `rediss+cluster` speak TLS. A URL may hold a password, so no message ever shows one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from diana.core.duration import micros_from_spelling
from diana.core.errors import ConfigError, shown
from diana.core.store_url import no_store_url

BUDGET_US = 50_000
"""How long a request waits for the store, if neither the URL nor the rules file says."""
NAMESPACE = "diana"
"""The prefix of all keys, likewise."""
DEFAULT_PORTS = {"single": 6379, "sentinel": 26379, "cluster": 6379}
ESCAPED = (
    "in a user, a password or a value, write / as %2F, ? as %3F, # as %23, @ as %40 and % as %25"
)
FAMILIES = ("redis", "rediss", "unix", "valkey", "valkeys")
_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Endpoint(NamedTuple):
    """Where a server listens. A path alone is a unix socket."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


@dataclass(frozen=True, slots=True)
class RedisAddress:
    kind: str
    """`single`, `sentinel` or `cluster`."""
    endpoints: tuple[Endpoint, ...]
    service: str = ""
    """The name under which sentinels know the master."""
    login: Mapping[str, Any] = field(default_factory=dict)
    """How to open a connection: user, password, database, TLS."""
    sentinel_login: Mapping[str, Any] = field(default_factory=dict)
    namespace: str | None = None
    budget_us: int | None = None
    nodes: int | None = None
    weight: int | None = None

    @property
    def place(self) -> str:
        """Where the counters are, without how to get there: who uses the same has the same counters."""
        hosts = ",".join(f"{host}:{port}" for host, port in sorted(self.endpoints))
        return f"{self.service}@{hosts}/{self.login.get('db', 0)}"


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise ConfigError(f"{shown(text)} is no whole number")
    return int(text)


def _requirement(text: str) -> str:
    if text not in ("none", "optional", "required"):
        raise ConfigError(f"{shown(text)}: write none, optional or required")
    return text


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{shown(text)}: write true or false")
    return text.lower() == "true"


def namespace_from_spelling(text: str) -> str:
    if not isinstance(text, str) or not _NAMESPACE.fullmatch(text):
        raise ConfigError(
            f"{shown(text)} is no namespace; write up to 64 letters, digits, dots, dashes or underscores"
        )
    return text


def _budget(text: str) -> int:
    micros = micros_from_spelling(text)
    if not 1_000 <= micros <= 10_000_000:
        raise ConfigError("no request should wait so for a store; write from 1ms to 10s")
    return micros


def _natural(text: str) -> int:
    number = _number(text)
    if number < 1:
        raise ConfigError("write a whole number from 1")
    return number


LOGIN: dict[str, Callable[[str], Any]] = {
    "db": _number,
    "client_name": str,
    "ssl_ca_certs": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "ssl_cert_reqs": _requirement,
    "ssl_check_hostname": _flag,
}
SENTINEL_LOGIN: dict[str, Callable[[str], Any]] = {
    "sentinel_username": str,
    "sentinel_password": str,
}
OWN: dict[str, Callable[[str], Any]] = {
    "namespace": namespace_from_spelling,
    "budget": _budget,
    "nodes": _natural,
    "weight": _natural,
}


def address_from_url(url: str) -> RedisAddress:
    """What a URL says; ConfigError says what to write instead."""
    scheme, colon, rest = url.partition("://")
    if not colon:
        raise no_store_url("store", url)
    family, _, kind = scheme.lower().partition("+")
    secure = family in ("rediss", "valkeys")
    kind = kind or "single"
    if (
        family not in FAMILIES
        or kind not in DEFAULT_PORTS
        or (family == "unix" and kind != "single")
    ):
        raise ConfigError(
            f"{shown(scheme)}:// is no store of this kind; write redis://host:6379 or so"
        )
    try:
        # The scheme is put in a form that urlsplit treats alike for all; several hosts are split below.
        parts = urlsplit(f"//{rest}")
        options = parse_qsl(
            parts.query, keep_blank_values=True, strict_parsing=bool(parts.query), max_num_fields=50
        )
    except ValueError:  # which may quote a password
        raise ConfigError(f"the URL of the store cannot be read; {ESCAPED}") from None
    behind = parts.query if family == "unix" else parts.path + parts.query
    if "#" in rest or "@" in behind:
        raise ConfigError(f"the URL of the store is cut in an odd place; {ESCAPED}")
    credentials, _, hosts = parts.netloc.rpartition("@")
    login = _credentials(credentials)
    if secure:
        login["tls"] = True
    own: dict[str, Any] = {}
    sentinel: dict[str, Any] = {"tls": True} if secure else {}
    for name, value in options:
        _read_option(name, value, kind, secure, login, sentinel, own)
    service = ""
    if family == "unix":
        if hosts or not parts.path:
            raise ConfigError("a unix socket is written unix:///path/of.sock, with three slashes")
        endpoints: tuple[Endpoint, ...] = (Endpoint(unquote(parts.path), 0),)
    else:
        endpoints = tuple(_endpoint(host, kind) for host in hosts.split(","))
        path = [unquote(part) for part in parts.path.strip("/").split("/") if part]
        if kind == "sentinel":
            if not path:
                raise ConfigError(
                    "which master? write its name behind the hosts: redis+sentinel://host:26379/mymaster"
                )
            service = path.pop(0)
        if kind == "cluster" and (path or login.get("db")):
            raise ConfigError("a cluster has database 0 only; leave out its number")
        if path:
            if len(path) > 1 or not path[0].isdecimal():
                raise ConfigError("behind the host stands the number of a database, such as /0")
            login.setdefault("db", _number(path[0]))
    if kind == "single" and len(endpoints) > 1:
        raise ConfigError(
            "several hosts are a cluster or sentinels; write redis+cluster:// or redis+sentinel://"
        )
    return RedisAddress(kind, endpoints, service, login, sentinel, **own)


def _read_option(
    name: str,
    value: str,
    kind: str,
    secure: bool,
    login: dict[str, Any],
    sentinel: dict[str, Any],
    own: dict[str, Any],
) -> None:
    known = OWN | LOGIN | (SENTINEL_LOGIN if kind == "sentinel" else {})
    if name not in known:
        raise ConfigError(
            f"{shown(name)} is no option of this store's URL; there is {', '.join(known)}"
        )
    if name.startswith("ssl_") and not secure:
        raise ConfigError(f"{name} needs TLS; write rediss:// instead of redis://")
    try:
        read = known[name](value)
    except ConfigError as error:
        raise ConfigError(f"{name} in the URL of the store: {error}") from None
    if name in SENTINEL_LOGIN:
        sentinel[name.removeprefix("sentinel_")] = read
    elif name in OWN:
        own["budget_us" if name == "budget" else name] = read
    else:
        login[name] = read
        if name.startswith("ssl_"):
            sentinel[name] = read


def _credentials(text: str) -> dict[str, Any]:
    user, _, password = text.partition(":")
    found = {"username": unquote(user), "password": unquote(password)}
    return {name: value for name, value in found.items() if value}


def _endpoint(text: str, kind: str) -> Endpoint:
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text, str(DEFAULT_PORTS[kind])
    if not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 65536:
        raise ConfigError("a port of the store is no number from 1 to 65535")
    return Endpoint(unquote(host.strip("[]")) or "localhost", int(port))
