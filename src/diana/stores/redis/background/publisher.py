"""What others find in the store: the scripts under well-known names, and the limits as the scripts take them."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from time import monotonic
from typing import Any

from diana.core.meter import Meter
from diana.stores.redis.background.control import EXPECTED, Messenger
from diana.stores.redis.connection.server import Server
from diana.stores.redis.protocol.commands import Lost, Moved, Talk, command, script_call
from diana.stores.redis.protocol.script import scripts, wire_limit

LIMITS_LIVE_SECONDS = 3_600


class Publisher:
    def __init__(self, messenger: Messenger, namespace: str) -> None:
        self._messenger = messenger
        self._namespace = namespace
        self._limits: deque[tuple[bytes, Meter]] = deque()
        self._known_limits: dict[bytes, Meter] = {}
        self._next_limits = 0.0

    def add_limit(self, key: bytes, meter: Meter) -> None:
        self._limits.append((key, meter))

    def publish(self, server: Server) -> None:
        """Load the scripts, and tell others under which names."""
        for script in scripts().values():
            self._say(server, command("SCRIPT", "LOAD", script.text))
            name = command("SET", self._name_of(script.name), script.sha)
            self._say(server, name, elsewhere=True)
        server.known_to_it = True
        self._next_limits = 0.0
        self._warn_of_eviction(server)

    def publish_if_flushed(self, server: Server) -> None:
        if self._messenger.has_complained("publish"):
            return
        hashes = (script.sha for script in scripts().values())
        known = self._say(server, command("SCRIPT", "EXISTS", *hashes))
        name = self._name_of("acquire")
        mine = self._messenger.server_of(name) is server
        named = self._say(server, command("EXISTS", name)) if mine else True
        if isinstance(known, list) and named is not None and not (named and all(known)):
            self.publish(server)

    def limits_due(self) -> list[tuple[Server, Talk]]:
        """Limits to be made known now, and to whom."""
        if monotonic() >= self._next_limits:
            self._next_limits = monotonic() + LIMITS_LIVE_SECONDS / 2
            self._limits.extend(self._known_limits.items())
        due = []
        while self._limits:
            key, meter = self._limits.popleft()
            server, limit = self._messenger.server_of(key), wire_limit(meter)
            if limit is None:
                continue
            self._known_limits[key] = meter
            if server is not None and not server.down:
                argv = (limit, LIMITS_LIVE_SECONDS * 1_000)
                due.append((server, script_call(scripts()["init"], [key], argv)))
        return due

    def _say(self, server: Server, talk: Talk, elsewhere: bool = False) -> Any:
        """Good to have said; whoever may not say it can do without. `elsewhere`: another server may be the one to tell."""
        try:
            return self._messenger.converse(server, talk)
        except Moved:
            if not elsewhere:
                raise
        except Lost as error:
            if "NOPERM" not in str(error):
                raise
            said = f"the store's user may not publish scripts: {error}"
            self._messenger.complain("publish", said)
        return None

    def _warn_of_eviction(self, server: Server) -> None:
        with suppress(*EXPECTED):
            memory = self._messenger.converse(server, command("INFO", "memory"))
            if not isinstance(memory, bytes):
                return
            policy = memory.partition(b"maxmemory_policy:")[2].partition(b"\r\n")[0].decode()
            if policy.startswith("allkeys"):
                self._messenger.complain(
                    "eviction",
                    f"the store {server.endpoint} evicts by {policy}: when its memory is full, it forgets counters and with "
                    "them who is blocked; set maxmemory-policy noeviction or volatile-ttl",
                )

    def _name_of(self, script: str) -> bytes:
        return f"{self._namespace}:script:{script}".encode()
