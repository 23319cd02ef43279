"""A client of the Redis or Valkey that holds a key: one server, the master that sentinels name, or a cluster.

The URLs are those of stores, read by the same code, and `key` names the key. redis-py's own retries are off: what fails is reported, and
tried again by the code that follows the rules.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

from diana.core.errors import ConfigError, shown
from diana.sources.places.address import refuse_unescaped
from diana.stores.redis.url import RedisAddress, address_from_url

DEFAULT_KEY = "diana:rules"
OPTIONS = (
    "key", "db", "client_name", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname",
    "sentinel_username", "sentinel_password",
)  # fmt: skip
REPLY_SECONDS = 1.5
ONE_OF_SEVERAL_SECONDS = 0.4
"""For a first reply of one of several servers: a start waits a second, and a dead one must leave some of it to the next."""


class KeyAddress(NamedTuple):
    address: RedisAddress
    key: str


def key_address_from_url(url: str) -> KeyAddress:
    """ConfigError says what to write instead, and never shows a password."""
    scheme, _, rest = url.partition("://")
    refuse_unescaped(rest)
    servers, _, query = rest.partition("?")
    try:
        options = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigError("what stands behind the ? of the rules' URL cannot be read") from None
    for name, _ in options:
        if name not in OPTIONS:
            raise ConfigError(
                f"{shown(name)} is no option of the rules' URL; there is {', '.join(OPTIONS)}"
            )
    keys = [value for name, value in options if name == "key"]
    if len(keys) > 1 or "" in keys:
        raise ConfigError("key= is empty or written twice; write it once, such as ?key=diana:rules")
    others = urlencode([(name, value) for name, value in options if name != "key"])
    try:
        address = address_from_url(f"{scheme}://{servers}?{others}")
    except ConfigError as error:
        # Read as a store is read, and said of what was written.
        raise ConfigError(error.message.replace("the store", "the rules")) from None
    return KeyAddress(address, keys[0] if keys else DEFAULT_KEY)


class KeyClient:
    """One client at a time, opened when it is needed and again after `disconnect`."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._client: Any = None
        self._sentinel: Any = None
        self._master: tuple[str, int] | None = None
        self._nodes = [(endpoint.host, endpoint.port) for endpoint in address.endpoints]

    def connected(self) -> Any:
        if self._client is None:
            self._client = self._open()
        return self._client

    def is_at_former_master(self) -> bool:
        """Whether the sentinels name another master by now: the old one may live on, with nothing new to tell."""
        return self._master is not None and self._discover_master() != self._master

    def disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def close(self) -> None:
        self.disconnect()
        sentinel, self._sentinel = self._sentinel, None
        for one in () if sentinel is None else sentinel.sentinels:
            one.close()

    def _open(self) -> Any:
        import redis

        options = _connection_options(self._address.login, REPLY_SECONDS)
        if self._address.kind == "cluster":
            return self._open_cluster(options)
        if self._address.kind == "sentinel":
            self._master = host, port = self._discover_master()
            return redis.Redis(host=host, port=port, **options)
        endpoint = self._address.endpoints[0]
        if not endpoint.port:
            return redis.Redis(unix_socket_path=endpoint.host, **options)
        return redis.Redis(host=endpoint.host, port=endpoint.port, **options)

    def _discover_master(self) -> tuple[str, int]:
        from redis.sentinel import MasterNotFoundError, Sentinel

        if self._sentinel is None:
            several = len(self._address.endpoints) > 1
            seconds = ONE_OF_SEVERAL_SECONDS if several else REPLY_SECONDS
            options = _connection_options(self._address.sentinel_login, seconds)
            self._sentinel = Sentinel(self._nodes, sentinel_kwargs=options)  # type: ignore[no-untyped-call]
        try:
            host, port = self._sentinel.discover_master(self._address.service)
        except MasterNotFoundError:
            asked = ", ".join(map(str, self._address.endpoints))
            raise MasterNotFoundError(
                f"no sentinel of {asked} names a master for {self._address.service!r}"
            ) from None
        return host, port

    def _open_cluster(self, options: dict[str, Any]) -> Any:
        from redis.cluster import ClusterNode, RedisCluster

        # Slots that others need may be uncovered; and nodes that were discovered outlive those that are written in the URL.
        cluster = RedisCluster(
            startup_nodes=[ClusterNode(*node) for node in self._nodes],  # type: ignore[no-untyped-call]
            require_full_coverage=False,
            **options,
        )
        nodes: Any = cluster.get_nodes()  # type: ignore[no-untyped-call]
        discovered = [(str(node.host), int(node.port)) for node in nodes]
        self._nodes = list(dict.fromkeys([*discovered, *self._written_nodes()]))
        return cluster

    def _written_nodes(self) -> list[tuple[str, int]]:
        return [(endpoint.host, endpoint.port) for endpoint in self._address.endpoints]


def _connection_options(greeting: Any, seconds: float) -> dict[str, Any]:
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    options = {name: value for name, value in greeting.items() if name != "tls"}
    return {
        **options,
        **({"ssl": True} if greeting.get("tls") else {}),
        "socket_timeout": seconds,
        "socket_connect_timeout": seconds,
        "retry": Retry(NoBackoff(), 0),
    }
