"""Rules for nginx in the store, where it looks for them once a second: a hash with `version` and `rules`."""

from __future__ import annotations

import logging
import re
from hashlib import sha256
from threading import Event
from typing import Any

from diana.core.errors import ConfigError
from diana.core.policy import Policy, RulesFrom
from diana.nginx.wire_rules import wire_rules, wire_version
from diana.sources.places.redis_client import KeyClient
from diana.stores.redis.store import NAMESPACE
from diana.stores.redis.url import address_from_url

log = logging.getLogger("diana")

LOOK_SECONDS = 0.5

_LOGIN = re.compile(r"://[^/?]*@")


def rules_key(namespace: str, rules_from: RulesFrom | None) -> str:
    """Fleets with rules of their own may share a namespace: they are told apart by where their rules come from."""
    if rules_from is None:
        return f"{namespace}:rules:nginx"
    place = _LOGIN.sub("://", rules_from.url)
    return f"{namespace}:rules:nginx:{sha256(place.encode()).hexdigest()[:16]}"


class RulesPublisher:
    """`swap` takes other rules; `publish` says whether something had to be written."""

    def __init__(self, policy: Policy, store: str) -> None:
        self._client = KeyClient(address_from_url(store))
        self._key = rules_key(policy.settings.namespace or NAMESPACE, policy.settings.rules_from)
        self._text = wire_rules(policy)
        self.problem: str | None = None
        """Why the rules that are in force are not those that are published."""
        self.changed = Event()

    def swap(self, policy: Policy) -> None:
        """Rules that nginx cannot obey are not published: the last that it can stay."""
        try:
            self._text = wire_rules(policy)
            self.problem = None
        except ConfigError as error:
            self.problem = error.message
            log.error("rules of version %s are not published: %s", policy.version, error.message)
        self.changed.set()

    def publish(self) -> str | None:
        """The version that was written; None if it is there already."""
        import redis

        version, text = wire_version(self._text), self._text
        try:
            client: Any = self._client.connected()
            if client.hget(self._key, "version") == version.encode():
                return None
            fields = {"version": version, "rules": text.encode("utf-8", "surrogatepass")}
            client.hset(self._key, mapping=fields)
        except redis.RedisError:
            self._client.disconnect()
            raise
        return version

    def close(self) -> None:
        self._client.close()
