"""Overrides that stand in the store, for the whole fleet: one entry each, read by every node in the background.

    diana:{overrides}            a hash: `rule|key` -> `rpu,burst,until in µs`
    diana:{overrides}:changes    which of them changed when: a node asks for those since it last asked
    diana:{overrides}:ends       when an entry is to be swept away
    diana:{overrides}:forgotten  counters that were reset by hand: nodes forget that they denied them
    diana:{overrides}:version    when anything of it changed last: all that a node reads while nothing does

No decision costs a round trip for it: nodes ask with their heartbeat, once a second, so a change is heard of within two seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from urllib.parse import unquote

from diana.core.counter import escaped
from diana.core.limit_adjustments import LiveOverrides, Override
from diana.stores.redis.protocol.commands import Exchange, call_script, command
from diana.stores.redis.protocol.scripts import scripts

PARTS = ("changes", "ends", "forgotten", "version")
AT_ONCE = 500
READ_ALL_SECONDS = 30.0
"""Who has not asked for so long may have missed what was swept away since: it reads all."""
SWEPT_MS = 60_000
"""How long what is gone is still told of."""


def override_keys(namespace: str) -> list[bytes]:
    """In one slot."""
    tag = f"{namespace}:{{overrides}}"
    return [tag.encode()] + [f"{tag}:{part}".encode() for part in PARTS]


def field_of(rule: str, key: str) -> str:
    return f"{escaped(rule)}|{key}"


def text_of(override: Override | None) -> str:
    """Empty: no longer."""
    if override is None:
        return ""
    rpu, burst, until_us = override
    return f"{rpu},{'' if burst is None else burst},{'' if until_us is None else until_us}"


def override_of_text(text: str) -> Override | None:
    try:
        rpu, burst, until_us = text.split(",")
        return Override(
            int(rpu), int(burst) if burst else None, int(until_us) if until_us else None
        )
    except ValueError:
        return None


def write_override(namespace: str, rule: str, key: str, override: Override | None) -> Exchange:
    until_ms = override.until_us // 1_000 if override is not None and override.until_us else ""
    argv = ("set", field_of(rule, key), text_of(override), until_ms, SWEPT_MS)
    return call_script(scripts()["override"], override_keys(namespace), argv)


def write_forgotten(namespace: str, counter: bytes) -> Exchange:
    """Tell all nodes that this counter was reset."""
    argv = ("forget", counter, "", "", SWEPT_MS)
    return call_script(scripts()["override"], override_keys(namespace), argv)


class StoredOverrides:
    """What this node knows of them."""

    def __init__(
        self, namespace: str, table: LiveOverrides, forget: Callable[[bytes], None]
    ) -> None:
        self.keys = override_keys(namespace)
        self._table = table
        self._forget = forget
        self._changes_since = self._forgotten_since = "0"
        self._asked = 0.0
        self._version: bytes | None = None

    def refresh(self) -> Exchange:
        """Ask for what has changed, until there is no more."""
        version = yield from command("GET", self.keys[-1])
        if version == self._version:
            self._asked = monotonic()
            return
        table = self._table
        if monotonic() - self._asked > READ_ALL_SECONDS:
            self._changes_since, table = "0", LiveOverrides()
        while True:
            argv = (self._changes_since, self._forgotten_since, AT_ONCE)
            changes, forgotten, left = yield from call_script(scripts()["changes"], self.keys, argv)
            for place in range(0, len(changes), 3):
                field, version, text = changes[place : place + 3]
                rule, _, key = field.decode("utf-8", "surrogatepass").partition("|")
                table.set(unquote(rule), key, override_of_text(text.decode()))
                self._changes_since = version.decode()
            for place in range(0, len(forgotten), 2):
                self._forget(forgotten[place])
                self._forgotten_since = forgotten[place + 1].decode()
            if len(changes) < 3 * AT_ONCE and len(forgotten) < 2 * AT_ONCE:
                break
        if not left:
            table = LiveOverrides()  # the server was emptied
        if table is not self._table:
            self._table.replace(table)
        self._asked, self._version = monotonic(), version
