"""Rules from Redis or Valkey: a key that holds them, and a channel of the same name on which a change is announced.

`redis://host:6379/0?key=diana:rules`, also by TLS, by a socket, through Sentinel and Cluster: the URLs are those of stores, read by the
same code. `key` is `diana:rules` by default. After every reconnection the key is read again, and every few seconds anyway, for a key that
was set without an announcement. redis-py's own retries are off: a failure is reported, and `watch/` tries again.
"""

from __future__ import annotations

import email.parser  # noqa: F401  # redis-py's first connection imports it, and no background thread may: see diana.runtime.fork
import logging
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib.util import find_spec
from threading import Event
from time import monotonic
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode

from diana.core.contracts import Revision
from diana.core.errors import ConfigError, SourceError, shown
from diana.redis_client.redis_url import RedisAddress, address_from_url
from diana.rules.backends.server_list import refuse_unescaped, shown_url
from diana.rules.document.yaml_tree import LARGEST_BYTES

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


T = TypeVar("T")

log = logging.getLogger("diana")

POLL_SECONDS = 5.0
POLL_UNSUBSCRIBED_SECONDS = 1.0
"""Without the right to subscribe to the channel."""
MASTER_SECONDS = 1.0
"""How often sentinels are asked whether the master is still the master."""
WAIT_SECONDS = 0.5

PUBLISH = """
-- Replace what was seen, keep it as the previous edition, and announce the change. KEYS: the rules, the previous ones. ARGV: what was seen,
-- whether anything was, what is new. Gives 1, or 0 if something else is there.
local there = redis.call('GET', KEYS[1])
if ARGV[2] == '0' then
  if there then return 0 end
elseif there ~= ARGV[1] then
  return 0
end
if there then redis.call('SET', KEYS[2], there) end
redis.call('SET', KEYS[1], ARGV[3])
redis.call('PUBLISH', KEYS[1], 'changed')
return 1
"""


class RedisSource:
    def __init__(self, where: KeyAddress, place: str = "Redis") -> None:
        self.place = f"{place}, key {where.key}"
        """As operators know it."""
        self._key = where.key
        self._servers = KeyClient(where.address)
        self._closed = Event()
        self._watching = False
        self._warned_of_polling = False

    @classmethod
    def from_url(cls, url: str) -> RedisSource:
        cls.check_url(url)
        return cls(key_address_from_url(url), shown_url(url))

    @staticmethod
    def check_url(url: str) -> None:
        key_address_from_url(url)
        if find_spec("redis") is None:
            raise ConfigError("redis is not installed; run pip install 'diana-limiter[redis]'")

    def load(self) -> Revision:
        return self._call(self._read)

    def watch(self, known: Revision) -> Iterator[Revision]:
        self._watching = True
        try:
            yield from self._changes(known)
        except SourceError:
            # It may have been closed before it was known that it is watched.
            if not self._closed.is_set():
                raise
        finally:
            self._watching = False
            self._servers.close()

    def _changes(self, known: Revision) -> Iterator[Revision]:
        channel = _Channel(self._call(self._subscribed), self._closed)
        try:
            due = 0.0  # at once: something may have changed before the subscription
            checked = monotonic()
            while not self._closed.is_set():
                if monotonic() - checked >= MASTER_SECONDS:
                    if self._call(self._servers.is_at_former_master):
                        raise SourceError("the rules in Redis: the sentinels name another master")
                    checked = monotonic()
                if self._call(channel.announced) or monotonic() >= due:
                    if channel.is_refused:
                        self._warn_of_polling()
                    due = monotonic() + (
                        POLL_UNSUBSCRIBED_SECONDS if channel.is_refused else POLL_SECONDS
                    )
                    edition = self._call(self._read)
                    if edition.version != known.version:
                        known = edition
                        yield edition
        finally:
            channel.close()

    def close(self) -> None:
        self._closed.set()
        if not self._watching:  # else the watch does it, in its own thread
            self._servers.close()

    def publish(self, text: bytes, seen: Revision | None) -> Revision:
        keys = [self._key, f"{{{self._key}}}.previous"]
        seen_text, was_there = (b"", 0) if seen is None else (seen.text, 1)
        done = self._call(
            lambda: self._servers.connected().eval(PUBLISH, 2, *keys, seen_text, was_there, text)
        )
        if done != 1:
            raise SourceError(
                f"the key {self._key} has changed since it was read; run the command again"
            )
        return self.load()

    def previous(self) -> Revision:
        return self._call(lambda: self._read(f"{{{self._key}}}.previous"))

    def _read(self, key: str | None = None) -> Revision:
        name = key or self._key
        client = self._servers.connected()
        too_large = SourceError(
            f"the key {name} holds more than {LARGEST_BYTES:,} bytes; split the rules"
        )
        if client.strlen(name) > LARGEST_BYTES:
            raise too_large
        text = client.get(name)
        if text is None:
            raise SourceError(f"there is no key {name}")
        if len(text) > LARGEST_BYTES:  # it was replaced in between
            raise too_large
        return Revision(text, sha256(text).hexdigest()[:12])

    def _subscribed(self) -> Any:
        pubsub = self._servers.connected().pubsub(ignore_subscribe_messages=True)
        pubsub.subscribe(self._key)
        return pubsub

    def _warn_of_polling(self) -> None:
        if not self._warned_of_polling:
            self._warned_of_polling = True
            log.warning(
                "Redis allows this user neither SUBSCRIBE nor PING on the channel %s, so the rules are looked at every %g s",
                self._key,
                POLL_UNSUBSCRIBED_SECONDS,
            )

    def _call(self, request: Callable[[], T]) -> T:
        from redis.exceptions import RedisClusterException, RedisError

        try:
            return request()
        except (RedisError, RedisClusterException, OSError) as error:
            self._servers.disconnect()
            raise SourceError(f"the rules in Redis: {error}") from None


class _Channel:
    """On which changes are announced. A connection that is dead without having been closed is found out by PING."""

    def __init__(self, pubsub: Any, closed: Event) -> None:
        self._pubsub = pubsub
        self._closed = closed
        self.is_refused = False
        """The user may not subscribe."""
        self._pinged_at: float | None = None

    def announced(self) -> bool:
        """Whether a change was, within a short wait."""
        from redis.exceptions import NoPermissionError

        if self.is_refused:
            self._closed.wait(WAIT_SECONDS)
            return False
        try:
            message = self._pubsub.get_message(timeout=WAIT_SECONDS)
        except NoPermissionError:
            self.is_refused = True
            return True  # what was missed until now
        if message is not None:
            self._pinged_at = None
            return bool(message["type"] == "message")
        if self._pinged_at is None:
            self._pinged_at = monotonic()
            self._pubsub.ping()
        elif monotonic() - self._pinged_at > REPLY_SECONDS:
            raise TimeoutError("no reply on the subscription channel")
        return False

    def close(self) -> None:
        self._pubsub.close()
