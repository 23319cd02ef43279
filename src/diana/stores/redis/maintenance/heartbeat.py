"""The heartbeat: which nodes are alive, and how often the most frequent keys are charged in the whole fleet.

A node is one local store: a process, or a machine's zone, however many processes use it. It sends a heartbeat once a second. A limit is
shared among the nodes that are alive, by their weights. With its heartbeat a node sends the arrivals of its most frequent keys and
receives the sums. There are two hashes in turn, one for each second of the store's clock: the hash of the last second is complete.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from diana.redis_client.handshake import CONNECT_SECONDS
from diana.redis_client.redis_url import address_from_url
from diana.redis_client.reply_errors import Moved, Unreachable
from diana.redis_client.time_budget import Budget
from diana.redis_client.topology import find_server
from diana.stores.arrival_rates import Arrivals
from diana.stores.redis.protocol.commands import USE_CLUSTER, Exchange, call_script, command
from diana.stores.redis.protocol.scripts import scripts

BEAT_SECONDS = 1.0
SILENCE_MS = 5_000
"""After so long without a word a node is gone."""


class FleetNode(NamedTuple):
    id: str
    host: str
    pid: int
    silent_ms: int
    """Since when nothing was heard of it."""
    weight: int = 1
    leased: int = 0
    """Counters of which it holds permits in advance."""
    held: int = 0
    """Such permits."""
    used: int = 0
    """Those that it used, since it lives."""


class Fleet(NamedTuple):
    """What a heartbeat tells of all nodes."""

    nodes: int
    weight: int
    """Of all together."""


def membership_keys(namespace: str) -> list[bytes]:
    """In one slot: the nodes by when they were heard of, what they say of themselves, and what they weigh."""
    tag = f"{{{namespace}:nodes}}"
    return [tag.encode(), f"{tag}:said".encode(), f"{tag}:weights".encode()]


class Membership:
    """This node, as others see it. Made anew after a fork."""

    def __init__(self, namespace: str, weight: int = 1, zone: str | None = None) -> None:
        self.keys = membership_keys(namespace)
        self.id = zone or secrets.token_hex(8)
        self.may_leave = zone is None
        """A zone has other processes: it is gone when none of them is heard of."""
        self._weight = weight
        self._about = {"host": platform.node(), "pid": os.getpid(), "weight": weight}
        self.leases: Callable[[], dict[str, int]] = dict
        """What it holds of leased limits."""

    def beat(self) -> Exchange:
        """Gives the Fleet."""
        return self._beat(SILENCE_MS)

    def leave(self) -> Exchange:
        return self._beat(0)

    def _beat(self, silence_ms: int) -> Exchange:
        reply = yield from call_script(
            scripts()["beat"],
            self.keys,
            (
                self.id,
                json.dumps({**self._about, "leases": self.leases()}),
                silence_ms,
                self._weight,
            ),
        )
        return Fleet(max(1, reply[0]), max(self._weight, reply[2]))


def live_nodes(namespace: str) -> Exchange:
    """Those that were heard of within the silence, longest silent first."""
    times, said, _ = membership_keys(namespace)
    seconds, micros = yield from command("TIME")
    now_ms = int(seconds) * 1_000 + int(micros) // 1_000
    heard = yield from command("ZRANGE", times, 0, -1, "WITHSCORES")
    about = yield from command("HGETALL", said)
    words = dict(zip(about[::2], about[1::2], strict=True))
    return [node for node in _nodes(heard, words, now_ms) if node.silent_ms <= SILENCE_MS]


def nodes_of_store(url: str, namespace: str | None = None) -> list[FleetNode]:
    """Asked directly, without becoming a node; Failure if no server answers."""
    address = address_from_url(url)
    name = namespace or address.namespace or "diana"
    with find_server(address, membership_keys(name)[0]) as connection:
        try:
            found: list[FleetNode] = connection.exchange(live_nodes(name), Budget(CONNECT_SECONDS))
        except Moved:
            raise Unreachable(USE_CLUSTER) from None
    return found


def _nodes(heard: list[bytes], words: dict[bytes, bytes], now_ms: int) -> Iterator[FleetNode]:
    for id, score in zip(heard[::2], heard[1::2], strict=True):
        said: dict[str, Any] = json.loads(words.get(id, b"{}"))
        silent_ms = max(0, now_ms - int(float(score)))
        yield FleetNode(
            id.decode(),
            str(said.get("host", "?")),
            int(said.get("pid", 0)),
            silent_ms,
            int(said.get("weight", 1)),
            *(int(said.get("leases", {}).get(name, 0)) for name in ("keys", "held", "used")),
        )


def arrival_keys(namespace: str) -> list[bytes]:
    """In the slot of the list of nodes."""
    return [f"{{{namespace}:nodes}}:arrivals:{turn}".encode() for turn in (0, 1)]


def exchange_arrivals(namespace: str, arrivals: Arrivals) -> Exchange:
    """Say ours, and hear the sums."""
    said = arrivals.report()
    if not said:
        return
    argv = [
        word for key, rate in said.items() for word in (key.encode("utf-8", "surrogatepass"), rate)
    ]
    sums = yield from call_script(scripts()["arrivals"], arrival_keys(namespace), argv)
    arrivals.hear(dict(zip(said, map(float, sums), strict=True)))
