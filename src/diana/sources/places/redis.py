"""Rules from Redis or Valkey: a key that holds them, and a channel of the same name on which a change is announced.

`redis://host:6379/0?key=diana:rules`, also by TLS, by a socket, through Sentinel and Cluster: as stores are written. `key` is `diana:rules`
unless it says otherwise. After every reconnection the key is read again, and every few seconds anyway, for a key set without announcing it.
"""

from __future__ import annotations

import email.parser  # noqa: F401  # redis-py's first connection imports it, and no background thread may: see diana.processes
import logging
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib.util import find_spec
from threading import Event
from time import monotonic
from typing import Any, TypeVar

from diana.core.contracts import Revision
from diana.core.errors import ConfigError, SourceError
from diana.sources.document.yaml_tree import LARGEST_BYTES
from diana.sources.places.address import shown_url
from diana.sources.places.redis_client import (
    REPLY_SECONDS,
    KeyAddress,
    KeyClient,
    key_address_from_url,
)

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
