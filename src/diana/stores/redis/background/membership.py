"""Who else is there: nodes say once a second that they live, and a limit is shared among those heard of.

A node is one local store: a process.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
from collections.abc import Iterator
from time import monotonic
from typing import Any, NamedTuple

from diana.stores.redis.connection.server import Server
from diana.stores.redis.connection.threads import CONNECT_SECONDS, Link, open_socket
from diana.stores.redis.connection.topology import slot_of_key, topology_from_address
from diana.stores.redis.protocol.commands import (
    WRITE_CLUSTER,
    Lost,
    Moved,
    Spoilt,
    Talk,
    command,
    script_call,
)
from diana.stores.redis.protocol.script import scripts
from diana.stores.redis.url import Endpoint, address_from_url

BEAT_SECONDS = 1.0
SILENCE_MS = 5_000
"""After so long without a word a node is gone."""


class Node(NamedTuple):
    id: str
    host: str
    pid: int
    silent_ms: int
    """Since when nothing was heard of it."""


def registry_keys(namespace: str) -> list[bytes]:
    """In one slot: the nodes by when they were heard of, and what they say of themselves."""
    tag = f"{{{namespace}:nodes}}"
    return [tag.encode(), f"{tag}:said".encode()]


class Registration:
    """This node, as others see it. Made anew after a fork."""

    def __init__(self, namespace: str) -> None:
        self.keys = registry_keys(namespace)
        self.id = secrets.token_hex(8)
        self._said = json.dumps({"host": platform.node(), "pid": os.getpid()})

    def beat(self) -> Talk:
        """Gives how many nodes there are."""
        return self._beat(SILENCE_MS)

    def leave(self) -> Talk:
        return self._beat(0)

    def _beat(self, silence_ms: int) -> Talk:
        reply = yield from script_call(
            scripts()["beat"], self.keys, (self.id, self._said, silence_ms)
        )
        return reply[0]


def live_nodes(namespace: str) -> Talk:
    """Those that were heard of within the silence, longest silent first."""
    times, said = registry_keys(namespace)
    seconds, micros = yield from command("TIME")
    now_ms = int(seconds) * 1_000 + int(micros) // 1_000
    heard = yield from command("ZRANGE", times, 0, -1, "WITHSCORES")
    about = yield from command("HGETALL", said)
    words = dict(zip(about[::2], about[1::2], strict=True))
    return [node for node in _nodes(heard, words, now_ms) if node.silent_ms <= SILENCE_MS]


def nodes_of_store(url: str, namespace: str | None = None) -> list[Node]:
    """Asked directly, without becoming a node; Lost if nobody answers."""
    address = address_from_url(url)
    name = namespace or address.namespace or "diana"

    def server_at(endpoint: Endpoint) -> Server:
        return Server(endpoint, address.greeting, CONNECT_SECONDS, lambda _: None, lambda *_: None)

    topology = topology_from_address(address, server_at)
    topology.look()
    slot = slot_of_key(registry_keys(name)[0]) if topology.has_slots else 0
    server = topology.server_of_slot(slot)
    if server is None:
        raise Lost("no server has the key of the nodes")
    link = Link(open_socket(server.endpoint, address.greeting))
    try:
        nodes: list[Node] = link.converse(live_nodes(name), monotonic() + CONNECT_SECONDS)
        return nodes
    except Moved:
        raise Lost(WRITE_CLUSTER) from None
    except Spoilt as error:
        raise Lost(str(error)) from None
    finally:
        link.close()


def _nodes(heard: list[bytes], words: dict[bytes, bytes], now_ms: int) -> Iterator[Node]:
    for id, score in zip(heard[::2], heard[1::2], strict=True):
        said: dict[str, Any] = json.loads(words.get(id, b"{}"))
        silent_ms = max(0, now_ms - int(float(score)))
        yield Node(id.decode(), str(said.get("host", "?")), int(said.get("pid", 0)), silent_ms)
