"""What other gateways find in the store: the scripts under well-known names, and the limits as the scripts take them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

from diana.core.counter import CounterSpec
from diana.redis_client.redis_server import Server
from diana.redis_client.reply_errors import Failure, Moved, ServerRefused
from diana.redis_client.thread_connection import ThreadConnection
from diana.runtime.throttled_log import ThrottledLog
from diana.stores.redis.maintenance.limit_publisher import facts_of_zero, facts_text
from diana.stores.redis.protocol.commands import Exchange, call_script, command
from diana.stores.redis.protocol.scripts import scripts, wire_limit

LIMITS_LIVE_SECONDS = 3_600
LIMITS_AT_ONCE = 100
MOST_LIMITS = 100_000
"""Published and renewed; of more, those that were seen first are forgotten."""


def limit_key(namespace: str, id: bytes) -> bytes:
    return f"{namespace}:limit:".encode() + id


def rule_key(namespace: str, id: bytes) -> bytes:
    """Beside the limit's."""
    return f"{namespace}:rule:".encode() + id


class Publisher:
    def __init__(
        self,
        server_of: Callable[[bytes], Server | None],
        namespace: str,
        notices: ThrottledLog,
        forget_limits: Callable[[], None],
    ) -> None:
        """`forget_limits`: those in use are added again with their next request, and those that are gone never."""
        self._server_of = server_of
        self._namespace = namespace
        self._notices = notices
        self._forget_limits = forget_limits
        self._due: deque[bytes] = deque()
        self._limits: dict[bytes, CounterSpec] = {}
        self._renew_at = monotonic() + LIMITS_LIVE_SECONDS / 2

    def add_limit(self, key: bytes, meter: CounterSpec) -> None:
        if wire_limit(meter) is None and facts_of_zero(meter) is None:
            return
        self._limits.pop(key, None)
        if len(self._limits) >= MOST_LIMITS:
            del self._limits[next(iter(self._limits))]
        self._limits[key] = meter
        self._due.append(key)

    def publish(self, server: Server, control: ThreadConnection) -> None:
        """Load the scripts, and tell others under which names."""
        for script in scripts().values():
            self._say(control, command("SCRIPT", "LOAD", script.text))
            name = self._name_of(script.name)
            if self._server_of(name) is server:
                self._say(control, command("SET", name, script.sha))
        server.scripts_are_loaded = True
        self._due = deque(list(self._limits))  # it may have been flushed
        self._warn_of_eviction(server, control)

    def publish_if_flushed(self, server: Server, control: ThreadConnection) -> None:
        if self._notices.is_standing("publish"):
            return
        hashes = (script.sha for script in scripts().values())
        known = self._say(control, command("SCRIPT", "EXISTS", *hashes))
        name = self._name_of("acquire")
        mine = self._server_of(name) is server
        named = self._say(control, command("EXISTS", name)) if mine else True
        if isinstance(known, list) and named is not None and not (named and all(known)):
            self.publish(server, control)

    @property
    def has_limits_due(self) -> bool:
        return bool(self._due)

    def limits_due(self) -> dict[Server, list[Exchange]]:
        """A few limits to be made known now, by the server that has their key."""
        if monotonic() >= self._renew_at:
            self._renew_at = monotonic() + LIMITS_LIVE_SECONDS / 2
            self._limits = {}
            self._forget_limits()
        due: dict[Server, list[Exchange]] = {}
        for _ in range(min(LIMITS_AT_ONCE, len(self._due))):
            key = self._due.popleft()
            meter, server = self._limits.get(key), self._server_of(key)
            if meter is not None and server is not None and not server.is_lost:
                life_ms = LIMITS_LIVE_SECONDS * 1_000
                wire = wire_limit(meter)
                if wire is None:  # a limit of 0, in place of what was published of the rule before
                    self._add_facts(due, key, meter, life_ms)
                    change = call_script(scripts()["reset"], [key], ("",))
                    due.setdefault(server, []).append(change)
                else:
                    change = call_script(scripts()["init"], [key], (wire, life_ms))
                    due.setdefault(server, []).append(change)
                    self._add_facts(due, key, meter, life_ms)
        return due

    def _add_facts(
        self, due: dict[Server, list[Exchange]], limit: bytes, meter: CounterSpec, life_ms: int
    ) -> None:
        """What commands find beside a limit. In a cluster it may be on another server."""
        key = rule_key(self._namespace, limit.removeprefix(limit_key(self._namespace, b"")))
        text, server = facts_text(meter), self._server_of(key)
        if text is not None and server is not None and not server.is_lost:
            due.setdefault(server, []).append(command("SET", key, text, "PX", life_ms))

    def _say(self, control: ThreadConnection, steps: Exchange) -> Any:
        """Good to have said; a user who may not say it can do without."""
        try:
            return control.exchange(steps)
        except Moved:
            return None  # the topology is about to be looked at anew
        except ServerRefused as failure:
            if "NOPERM" not in str(failure):
                raise
            self._notices.warn_once("publish", f"scripts cannot be published: {failure}")
        return None

    def _warn_of_eviction(self, server: Server, control: ThreadConnection) -> None:
        with suppress(Failure):
            memory = control.exchange(command("INFO", "memory"))
            if not isinstance(memory, bytes):
                return
            policy = memory.partition(b"maxmemory_policy:")[2].partition(b"\r\n")[0].decode()
            if policy.startswith("allkeys"):
                self._notices.warn_once(
                    "eviction",
                    f"store {server.endpoint} evicts by {policy}: when its memory is full, it forgets counters, and clients that "
                    "are blocked get through; set maxmemory-policy noeviction or volatile-ttl",
                )

    def _name_of(self, script: str) -> bytes:
        return f"{self._namespace}:script:{script}".encode()
