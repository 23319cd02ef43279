"""`redis_length`: how many entries wait in a list, stream, set or sorted set of Redis or Valkey: a message queue's backlog.

A plug-in as yours would be: nothing else in Diana knows it.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

import redis

from diana.core.errors import ConfigError
from diana.core.shed_settings import Activity, Factor, Open, Sample
from diana.redis_client.redis_url import RedisAddress, address_from_url
from diana.rules.backends.redis import KeyClient

LENGTHS = {"list": "LLEN", "stream": "XLEN", "set": "SCARD", "zset": "ZCARD", "none": None}
PAUSE_SECONDS = 5.0
"""A server that does not answer is asked again after so long: all factors are measured by one thread."""


class RedisLength:
    def __init__(self, address: RedisAddress, key: str) -> None:
        self._client = KeyClient(address)
        self._key = key
        self._ask_again = 0.0
        self._failure: Exception | None = None

    def __call__(self) -> float:
        if self._failure is not None and monotonic() < self._ask_again:
            raise self._failure
        try:
            length = self._length(self._client.connected())
        except (redis.RedisError, OSError) as error:
            self._client.disconnect()
            self._failure, self._ask_again = error, monotonic() + PAUSE_SECONDS
            raise
        self._failure = None
        return length

    def _length(self, client: Any) -> float:
        kind = client.execute_command("TYPE", self._key)
        kind = kind.decode() if isinstance(kind, bytes) else kind
        if kind not in LENGTHS:
            raise TypeError(f"key {self._key} is a {kind}, which has no length")
        verb = LENGTHS[kind]
        return 0.0 if verb is None else float(client.execute_command(verb, self._key))


def _make(*, url: str = "", key: str = "") -> Open:
    if not isinstance(url, str) or not url:
        raise ConfigError("there is no url; write url: such as redis://localhost:6379", path="url")
    if not isinstance(key, str) or not key:
        raise ConfigError("there is no key; write key: and the name of the list or stream")
    try:
        address = address_from_url(url)
    except ConfigError as error:
        raise ConfigError(error.message.replace("the store", "the queue"), path="url") from None

    def open(_: Activity) -> Sample:
        return RedisLength(address, key)

    return open


redis_length = Factor(_make, options=("url", "key"))
