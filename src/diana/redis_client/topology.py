"""Which servers there are, and which of them has a key. Only the thread of `maintenance/topology_refresh.py` looks; others read what it
found.

One server is always the same one. Sentinels are asked which server is master now, all of them, and the one that knows of the latest
fail-over is believed. A cluster says which master has which of the 16,384 slots; a server that says MOVED is believed at once if the
other is known, and the map is read anew.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from diana.redis_client.connection import Connection
from diana.redis_client.handshake import CONNECT_SECONDS, open_connection
from diana.redis_client.redis_server import Server
from diana.redis_client.redis_url import Endpoint, RedisAddress
from diana.redis_client.reply_errors import Failure, Unreachable
from diana.redis_client.time_budget import Budget
from diana.stores.redis.protocol.commands import command

SLOTS = 16_384
SENTINEL_SECONDS = 0.3
"""A sentinel that does not answer within this is not waited for: the others know."""
MARKS_OF_A_LOST_MASTER = {"s_down", "o_down", "disconnected", "master_down", "failover_in_progress"}

MakeServer = Callable[[Endpoint], Server]


class Topology(Protocol):
    has_slots: bool
    changes_silently: bool
    """No server says that another has taken over, so it is looked at with every heartbeat."""
    servers: tuple[Server, ...]

    def server_of_slot(self, slot: int) -> Server | None: ...

    def server_at(self, endpoint: str) -> Server | None: ...

    def look(self) -> None:
        """Find out which servers there are now; Failure if none says."""


def topology_from_address(address: RedisAddress, make: MakeServer, seconds: float) -> Topology:
    """`seconds`: how long a node of a cluster is waited for."""
    if address.kind == "cluster":
        return Cluster(address, make, seconds)
    return Sentinel(address, make) if address.kind == "sentinel" else Single(address, make)


def slot_of_key(key: bytes) -> int:
    """As every server of a cluster computes it: CRC16 of the part in braces, or of the whole key."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


class Single:
    has_slots = False
    changes_silently = False

    def __init__(self, address: RedisAddress, make: MakeServer) -> None:
        self.servers: tuple[Server, ...] = (make(address.endpoints[0]),)

    def server_of_slot(self, slot: int) -> Server | None:  # noqa: ARG002
        return self.servers[0]

    def server_at(self, endpoint: str) -> Server | None:  # noqa: ARG002
        return None

    def look(self) -> None:
        """It is where it was."""


class Sentinel:
    """The master of the latest fail-over that any sentinel knows of."""

    has_slots = False
    changes_silently = True

    def __init__(self, address: RedisAddress, make: MakeServer) -> None:
        self._address = address
        self._make = make
        self.servers: tuple[Server, ...] = ()

    def server_of_slot(self, slot: int) -> Server | None:  # noqa: ARG002
        return self.servers[0] if self.servers else None

    def server_at(self, endpoint: str) -> Server | None:  # noqa: ARG002
        return None

    def look(self) -> None:
        master = find_master(self._address)
        if not self.servers or self.servers[0].endpoint != master:
            old = self.servers
            new = self._make(master)
            # A server that takes over from a lost one is probed before requests rely on it.
            new.breaker.is_open = any(server.is_lost for server in old)
            self.servers = (new,)
            for server in old:
                server.close()


def find_master(address: RedisAddress) -> Endpoint:
    """All sentinels are asked: one may be cut off from the others, and not know of a fail-over."""
    service = address.service
    reason = f"no sentinel knows a master {service!r}"
    found: tuple[int, Endpoint] | None = None
    suspected: tuple[int, Endpoint] | None = None
    for endpoint in address.endpoints:
        try:
            words = ("SENTINEL", "MASTER", service)
            state = _ask(endpoint, address.sentinel_login, words, SENTINEL_SECONDS)
            epoch, master, flags = _master_from_reply(state)
        except (Failure, KeyError, ValueError, TypeError) as error:
            reason = f"no sentinel knows a master {service!r} ({endpoint}: {error})"
            continue
        if flags & MARKS_OF_A_LOST_MASTER:
            if suspected is None or epoch > suspected[0]:
                suspected = (epoch, master)
        elif found is None or epoch > found[0]:
            found = (epoch, master)
    best = found or suspected
    if best is None:
        raise Unreachable(reason)
    return best[1]


def _master_from_reply(state: list[bytes]) -> tuple[int, Endpoint, set[str]]:
    said = {
        name.decode(): value.decode() for name, value in zip(state[::2], state[1::2], strict=True)
    }
    master = Endpoint(said["ip"], int(said["port"]))
    return int(said["config-epoch"]), master, set(said["flags"].split(","))


class Cluster:
    has_slots = True
    changes_silently = False

    def __init__(self, address: RedisAddress, make: MakeServer, seconds: float) -> None:
        self._address = address
        self._make = make
        self._seconds = seconds
        self.servers: tuple[Server, ...] = ()
        self._of_slot: list[Server | None] = [None] * SLOTS

    def server_of_slot(self, slot: int) -> Server | None:
        return self._of_slot[slot]

    def server_at(self, endpoint: str) -> Server | None:
        return next((server for server in self.servers if str(server.endpoint) == endpoint), None)

    def look(self) -> None:
        known = tuple(server.endpoint for server in self.servers if not server.is_lost)
        rest = [endpoint for endpoint in self._address.endpoints if endpoint not in known]
        teller, slots = _first_answer((*known, *rest), self._address.login, self._seconds)
        servers = {server.endpoint: server for server in self.servers}
        found: dict[Endpoint, Server] = {}
        of_slot: list[Server | None] = [None] * SLOTS
        for first, last, master, *_ in slots:
            host = master[0].decode() if master[0] else teller.host
            endpoint = Endpoint(host, int(master[1]))
            server = found.get(endpoint) or servers.get(endpoint)
            if server is None:
                server = self._make(endpoint)
                before = self._of_slot[first]
                # It is probed before requests rely on it.
                server.breaker.is_open = before is not None and before.is_lost
            found[endpoint] = server
            of_slot[first : last + 1] = [server] * (last + 1 - first)
        self._of_slot = of_slot
        self.servers = tuple(found.values())
        for endpoint, server in servers.items():
            if endpoint not in found:
                server.close()


@contextmanager
def find_server(address: RedisAddress, key: bytes) -> Iterator[Connection]:
    """A connection to the server that has the key, for a tool that needs no more than that."""
    endpoint = address.endpoints[0]
    if address.kind == "sentinel":
        endpoint = find_master(address)
    elif address.kind == "cluster":
        teller, slots = _first_answer(address.endpoints, address.login)
        for first, last, master, *_ in slots:
            if first <= slot_of_key(key) <= last:
                host = master[0].decode() if master[0] else teller.host
                endpoint = Endpoint(host, int(master[1]))
    try:
        connection = open_connection(endpoint, address.login)
    except Unreachable as failure:
        raise Unreachable(f"{endpoint}: {failure}") from None
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def every_server(address: RedisAddress) -> Iterator[list[Connection]]:
    """Connections to all servers that have keys, for a tool that has to look at all of them."""
    endpoints = {address.endpoints[0]}
    if address.kind == "sentinel":
        endpoints = {find_master(address)}
    elif address.kind == "cluster":
        teller, slots = _first_answer(address.endpoints, address.login)
        endpoints = {
            Endpoint(master[0].decode() if master[0] else teller.host, int(master[1]))
            for _, _, master, *_ in slots
        }
    connections: list[Connection] = []
    try:
        connections.extend(open_connection(endpoint, address.login) for endpoint in endpoints)
        yield connections
    finally:
        for connection in connections:
            connection.close()


def _first_answer(
    endpoints: tuple[Endpoint, ...], login: Mapping[str, Any], seconds: float = CONNECT_SECONDS
) -> tuple[Endpoint, list[Any]]:
    """The first node that tells the slots, and what it says."""
    reason = "no node of the cluster answers"
    for endpoint in endpoints:
        try:
            slots = _ask(endpoint, login, ("CLUSTER", "SLOTS"), seconds)
        except Failure as failure:
            reason = f"no node of the cluster answers ({endpoint}: {failure})"
            continue
        if isinstance(slots, list) and slots:
            return endpoint, slots
    raise Unreachable(reason)


def _ask(
    endpoint: Endpoint, login: Mapping[str, Any], words: tuple[str, ...], seconds: float
) -> Any:
    connection = open_connection(endpoint, login, seconds=seconds)
    try:
        return connection.exchange(command(*words), Budget(seconds))
    finally:
        connection.close()
