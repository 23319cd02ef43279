"""Counters in Redis or Valkey, as commands read and change them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click

from diana.cli.found_rule import KnownRule, Terms, rule_from_store
from diana.cli.store_admin import Look
from diana.core.limit_adjustments import Override
from diana.core.matched_rules import HERE
from diana.core.plain_text import plain
from diana.redis_client.handshake import CONNECT_SECONDS
from diana.redis_client.redis_url import NAMESPACE, address_from_url
from diana.redis_client.reply_errors import Failure
from diana.redis_client.time_budget import Budget
from diana.redis_client.topology import every_server, find_server
from diana.rules.backends.server_list import shown_url
from diana.stores.redis.maintenance.overrides_refresh import (
    field_of,
    override_keys,
    override_of_text,
    write_forgotten,
    write_override,
)
from diana.stores.redis.maintenance.script_publisher import limit_key, rule_key
from diana.stores.redis.protocol.commands import acquire, call_script, command
from diana.stores.redis.protocol.scripts import scripts, wire_limit
from diana.stores.redis.protocol.server_clock import ServerClock
from diana.stores.redis.protocol.wire_format import CounterEncoder

SCAN_SECONDS = 5.0
AT_ONCE = 1_000
MOST_NAMESPACES = 10


class RedisCounters:
    def __init__(self, url: str, namespace: str | None) -> None:
        self._address = address_from_url(url)
        self.namespace = namespace or self._address.namespace or NAMESPACE
        self.where = f"namespace {self.namespace!r} of {shown_url(url)}"
        self._plans = CounterEncoder(lambda _, __: None)

    def published(self) -> list[KnownRule]:
        limits, facts = self._texts(limit_key), self._texts(rule_key)
        found = (
            rule_from_store(self.namespace, id, limits.get(id), facts.get(id))
            for id in {**limits, **facts}
        )
        rules = [rule for rule in found if rule is not None]
        return sorted(rules, key=lambda rule: rule.distinct_name)

    def why_nothing(self) -> str:
        said = "nodes publish rules of scope global that were asked within the hour; name others with --rules FILE"
        others = sorted(self._namespaces() - {self.namespace})
        if others:
            shown = ", ".join(others[:MOST_NAMESPACES])
            said += f"\nthere are rules in other namespaces: {shown}; choose one with --namespace"
        return said

    def check_rule(self, rule: KnownRule) -> None:
        scope = rule.fields["scope"]
        if scope in HERE:
            raise click.ClickException(
                f"rule {rule.name!r} has scope {scope}, so it counts in each node's local_store and not in this store; "
                "if local_store is shared://NAME, write that URL as the first argument, on the node's machine"
            )

    def override_of(self, rule: KnownRule, key: str) -> Override | None:
        home = override_keys(self.namespace)[0]
        for name in (rule.distinct_name, rule.name):
            text = self._say(home, command("HGET", home, field_of(name, key)))
            override = None if text is None else override_of_text(text.decode())
            if override is not None:
                return override
        return None

    def look(self, rule: KnownRule, terms: Terms, key: str, cost: int) -> Look:
        limit = terms.wire if terms.meter is None else wire_limit(terms.meter)
        if limit is None:
            code = rule.meter.algorithm.code
            raise click.ClickException(f"{code} has no kernel in Lua; ask a node instead")
        counter = self._counter(rule, key)
        request = ["look", 1, limit, cost]
        steps = acquire(
            ServerClock(lambda: None), [counter], request, None, Budget(CONNECT_SECONDS)
        )
        said = self._say(counter, steps)[1]
        if not isinstance(said, list):
            raise click.ClickException(f"unexpected reply: {said!r}")
        allowed, remaining, retry_us, reset_us = (int(number) for number in said[1:5])
        return Look(bool(allowed), remaining, 0 if allowed else retry_us, reset_us)

    def reset(self, rule: KnownRule, key: str) -> bool:
        """Every node hears of it: what it remembers of a denial is forgotten too."""
        counter = self._counter(rule, key)
        gone = self._say(counter, call_script(scripts()["reset"], [counter], ("",)))
        home = override_keys(self.namespace)[0]
        self._say(home, write_forgotten(self.namespace, counter))
        return bool(gone)

    def override(self, rule: KnownRule, key: str, override: Override | None) -> bool:
        """What is removed may stand under a name that other rules have, too: as nodes look for it."""
        home = override_keys(self.namespace)[0]
        for name in dict.fromkeys((rule.distinct_name, rule.name)):
            was_there = self._say(home, write_override(self.namespace, name, key, override))
            if was_there or override is not None:
                return bool(was_there)
        return False

    def _counter(self, rule: KnownRule, key: str) -> bytes:
        return self._plans.keys([(rule.meter, key, 1)])[0]

    def _say(self, key: bytes, steps: Any) -> Any:
        """To the server that has the key."""
        with find_server(self._address, key) as connection:
            return connection.exchange(steps, Budget(CONNECT_SECONDS))

    def _texts(self, key_of: Any) -> dict[bytes, bytes | None]:
        """By the identity of a counter, what stands at such keys; nothing if this user may not read them."""
        prefix: bytes = key_of(self.namespace, b"")
        found: dict[bytes, bytes | None] = {}
        with every_server(self._address) as servers:
            for server in servers:
                for key in _scanned(server, prefix + b"*"):
                    text = server.exchange(command("GET", key), Budget(SCAN_SECONDS))
                    found[key.removeprefix(prefix)] = text
        return found

    def _namespaces(self) -> set[str]:
        """In which nodes have published limits."""
        found: set[str] = set()
        with suppress(Failure), every_server(self._address) as servers:
            for server in servers:
                for mark in (b":limit:", b":rule:"):
                    for key in _scanned(server, b"*" + mark + b"*"):
                        found.add(plain(key.partition(mark)[0].decode("utf-8", "replace")))
        return found


def _scanned(server: Any, pattern: bytes) -> list[bytes]:
    """All keys like this of one server."""
    found: list[bytes] = []
    cursor = b"0"
    while True:
        scan = command("SCAN", cursor, "MATCH", pattern, "COUNT", AT_ONCE)
        cursor, keys = server.exchange(scan, Budget(SCAN_SECONDS))
        found += keys
        if cursor == b"0":
            return found
