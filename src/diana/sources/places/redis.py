"""Rules from Redis or Valkey: a key that holds them, and a channel of the same name on which a change is announced.

`redis://host:6379/0?key=diana:rules`, also `rediss`, `unix`, `valkey`, `valkeys`; `key` is `diana:rules` unless it says otherwise. After
every reconnection the key is read again, and every few seconds anyway, for those who set it without announcing it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from hashlib import sha256
from threading import Event
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from diana.core.contracts import Edition
from diana.core.errors import ConfigError, SourceError, shown
from diana.sources.document.yaml_tree import LARGEST_BYTES
from diana.sources.places.address import refuse_unescaped

T = TypeVar("T")

log = logging.getLogger("diana")

DEFAULT_KEY = "diana:rules"
POLL_SECONDS = 5.0
POLL_UNSUBSCRIBED_SECONDS = 1.0
"""Without the right to subscribe to the channel."""
OPTIONS = (
    "key",
    "db",
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
    "ssl_check_hostname",
)
WAIT_SECONDS = 0.5
ANSWER_SECONDS = 1.5

UNREADABLE = (
    "the URL of the rules cannot be read; write one such as redis://host:6379/0?key=diana:rules, "
    "and in a password / as %2F, ? as %3F, # as %23, @ as %40"
)

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
    def __init__(self, url: str) -> None:
        self._url, self._key = _split(url)
        self._closed = Event()
        self._watching = False
        self._warned_of_polling = False
        self._client: Any = None

    @classmethod
    def from_url(cls, url: str) -> RedisSource:
        cls.check_url(url)
        return cls(url)

    @staticmethod
    def check_url(url: str) -> None:
        asked, _ = _split(url)
        client = _client(asked)
        try:
            client.connection_pool.make_connection()  # which checks the options, and does not connect
            database = unquote(urlsplit(asked).path).strip("/")
            if not asked.startswith("unix://") and database and not database.isdecimal():
                raise ValueError("no number of a database")
        except Exception:
            # Not what the error says: it may show a part of the password.
            raise ConfigError(UNREADABLE) from None
        finally:
            client.close()

    def load(self) -> Edition:
        return self._call(self._read)

    def watch(self, known: Edition) -> Iterator[Edition]:
        self._watching = True
        channel = _Channel(self._call(self._subscribed), self._closed)
        try:
            due = 0.0  # at once: something may have changed before the subscription
            while not self._closed.is_set():
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
            self._watching = False
            channel.close()
            self._disconnect()

    def close(self) -> None:
        self._closed.set()
        if not self._watching:  # else the watch does it, in its own thread
            self._disconnect()

    def publish(self, text: bytes, seen: Edition | None) -> Edition:
        keys = [self._key, f"{{{self._key}}}.previous"]
        seen_text, was_there = (b"", 0) if seen is None else (seen.text, 1)
        done = self._call(
            lambda: self._connected().eval(PUBLISH, 2, *keys, seen_text, was_there, text)
        )
        if done != 1:
            raise SourceError(
                f"the key {self._key} has changed since it was read; run the command again"
            )
        return self.load()

    def previous(self) -> Edition:
        return self._call(lambda: self._read(f"{{{self._key}}}.previous"))

    def _read(self, key: str | None = None) -> Edition:
        name = key or self._key
        client = self._connected()
        if client.strlen(name) > LARGEST_BYTES:
            raise SourceError(
                f"the key {name} holds more than {LARGEST_BYTES:,} bytes; split the rules"
            )
        text = client.get(name)
        if text is None:
            raise SourceError(f"there is no key {name}")
        return Edition(text, sha256(text).hexdigest()[:12])

    def _subscribed(self) -> Any:
        pubsub = self._connected().pubsub(ignore_subscribe_messages=True)
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

    def _connected(self) -> Any:
        if self._client is None:
            self._client = _client(self._url)
        return self._client

    def _call(self, ask: Callable[[], T]) -> T:
        from redis.exceptions import RedisError

        try:
            return ask()
        except (RedisError, OSError) as error:
            self._disconnect()
            raise SourceError(f"the rules in Redis: {error}") from None

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


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
        elif monotonic() - self._pinged_at > ANSWER_SECONDS:
            raise TimeoutError("no reply on the subscription channel")
        return False

    def close(self) -> None:
        self._pubsub.close()


def _split(url: str) -> tuple[str, str]:
    """As redis-py takes it, and the key."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower().replace("valkeys", "rediss").replace("valkey", "redis")
    refuse_unescaped(rest)
    where, _, query = rest.partition("?")
    try:
        options = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigError("what stands behind the ? of the rules' URL cannot be read") from None
    for name, _ in options:
        if name not in OPTIONS:
            raise ConfigError(
                f"{shown(name)} is no option of the rules' URL; there is {', '.join(OPTIONS)}"
            )
        if name.startswith("ssl_") and scheme != "rediss":
            raise ConfigError(f"{name} needs TLS; write rediss:// or valkeys://")
    keys = [value for name, value in options if name == "key"]
    if len(keys) > 1 or "" in keys:
        raise ConfigError("key= is empty or written twice; write it once, such as ?key=diana:rules")
    others = urlencode([(name, value) for name, value in options if name != "key"])
    return f"{scheme}://{where}?{others}", keys[0] if keys else DEFAULT_KEY


def _client(url: str) -> Any:
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ModuleNotFoundError:
        raise ConfigError(
            "redis is not installed; run pip install 'diana-limiter[redis]'"
        ) from None
    try:
        return redis.Redis.from_url(
            url,
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError:
        # Not what the error says: it may show a part of the password.
        raise ConfigError(UNREADABLE) from None
