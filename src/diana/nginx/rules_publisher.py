"""Rules for nginx in the store, where it looks for them once a second: a hash with `version` and `rules`."""

from __future__ import annotations

import logging
from threading import Event
from typing import Any
from urllib.parse import unquote

from diana.core.errors import ConfigError
from diana.core.limit_adjustments import LiveOverrides
from diana.core.policy import Policy
from diana.nginx.rules_json import rules_key, wire_rules, wire_version
from diana.redis_client.redis_url import NAMESPACE, address_from_url
from diana.rules.backends.redis import KeyClient
from diana.stores.redis.maintenance.overrides_refresh import override_keys, override_of_text

log = logging.getLogger("diana")

LOOK_SECONDS = 0.5
MOST_OVERRIDES = 5_000
"""All of them are read by every worker of every nginx when one changes."""


class RulesPublisher:
    """`swap` takes other rules; `publish` writes what has changed: rules, or overrides that stand in the store."""

    def __init__(self, policy: Policy, store: str) -> None:
        namespace = policy.settings.namespace or NAMESPACE
        self._client = KeyClient(address_from_url(store))
        self._key = rules_key(namespace, policy.settings.rules_from)
        self._overrides_key, *_, self._overrides_version_key = override_keys(namespace)
        self._overrides = LiveOverrides()
        self._overrides_version: bytes | None = None
        self._policy = policy
        self._text = wire_rules(policy)
        self.changed = Event()

    def swap(self, policy: Policy) -> None:
        """Rules that nginx cannot obey are not published: the last that it can stay."""
        try:
            self._text = wire_rules(policy, stored=self._overrides)
            self._policy = policy
        except ConfigError as error:
            log.error("rules of version %s are not published: %s", policy.version, error.message)
        self.changed.set()

    def publish(self) -> str | None:
        """The version that was written; None if it is there already."""
        import redis

        try:
            client: Any = self._client.connected()
            self._read_overrides(client)
            version, text = wire_version(self._text), self._text
            if client.hget(self._key, "version") == version.encode():
                return None
            fields = {"version": version, "rules": text.encode("utf-8", "surrogatepass")}
            client.hset(self._key, mapping=fields)
        except redis.RedisError:
            self._client.disconnect()
            raise
        return version

    def _read_overrides(self, client: Any) -> None:
        """What `diana override` has written."""
        version = client.get(self._overrides_version_key)
        if version == self._overrides_version:
            return
        self._overrides_version = version
        if client.hlen(self._overrides_key) > MOST_OVERRIDES:
            log.error(
                "more than %d overrides in the store: nginx obeys those that it knows",
                MOST_OVERRIDES,
            )
            return
        found = LiveOverrides()
        for field, text in client.hgetall(self._overrides_key).items():
            rule, _, key = field.decode("utf-8", "surrogatepass").partition("|")
            found.set(unquote(rule), key, override_of_text(text.decode()))
        self._overrides = found
        self._text = wire_rules(self._policy, stored=found)

    def close(self) -> None:
        self._client.close()
