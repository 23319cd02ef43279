"""Which servers there are, and which of them has a key. Only the keeper's thread looks; the others read what it found.

One server is always the same one. Sentinels are asked who is master now. A cluster says which master has which of the 16,384 slots; a
server that says MOVED is believed at once if the other is known, and the map is read anew.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

from redis.crc import key_slot

from diana.stores.redis.connection.server import Server
from diana.stores.redis.connection.threads import CONNECT_SECONDS, Link, open_socket
from diana.stores.redis.protocol.commands import Lost, Spoilt, command
from diana.stores.redis.url import Address, Endpoint

SLOTS = 16_384

MakeServer = Callable[[Endpoint], Server]


class Topology(Protocol):
    has_slots: bool
    servers: tuple[Server, ...]

    def server_of_slot(self, slot: int) -> Server | None: ...

    def server_at(self, endpoint: str) -> Server | None: ...

    def look(self) -> None:
        """Find out who is there now; Lost if nobody says."""


def topology_from_address(address: Address, make: MakeServer) -> Topology:
    kinds: dict[str, Callable[[Address, MakeServer], Topology]]
    kinds = {"single": Single, "sentinel": Sentinel, "cluster": Cluster}
    return kinds[address.kind](address, make)


def slot_of_key(key: bytes) -> int:
    slot: int = key_slot(key)
    return slot


class Single:
    has_slots = False

    def __init__(self, address: Address, make: MakeServer) -> None:
        self.servers: tuple[Server, ...] = (make(address.endpoints[0]),)

    def server_of_slot(self, slot: int) -> Server | None:  # noqa: ARG002
        return self.servers[0]

    def server_at(self, endpoint: str) -> Server | None:  # noqa: ARG002
        return None

    def look(self) -> None:
        """It is where it was."""


class Sentinel:
    """The master that most recently a sentinel named."""

    has_slots = False

    def __init__(self, address: Address, make: MakeServer) -> None:
        self._address = address
        self._make = make
        self.servers: tuple[Server, ...] = ()

    def server_of_slot(self, slot: int) -> Server | None:  # noqa: ARG002
        return self.servers[0] if self.servers else None

    def server_at(self, endpoint: str) -> Server | None:  # noqa: ARG002
        return None

    def look(self) -> None:
        service = self._address.service
        _, reply = _first_answer(
            self._address.endpoints,
            self._address.sentinel_greeting,
            lambda: command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service),
            f"no sentinel knows a master {service!r}",
        )
        master = Endpoint(reply[0].decode(), int(reply[1]))
        if not self.servers or self.servers[0].endpoint != master:
            old = self.servers
            new = self._make(master)
            # Who takes over from a lost one is probed before anybody relies on it.
            new.down = any(server.down for server in old)
            self.servers = (new,)
            for server in old:
                server.close()


class Cluster:
    has_slots = True

    def __init__(self, address: Address, make: MakeServer) -> None:
        self._address = address
        self._make = make
        self.servers: tuple[Server, ...] = ()
        self._of_slot: list[Server | None] = [None] * SLOTS

    def server_of_slot(self, slot: int) -> Server | None:
        return self._of_slot[slot]

    def server_at(self, endpoint: str) -> Server | None:
        return next((server for server in self.servers if str(server.endpoint) == endpoint), None)

    def look(self) -> None:
        known = tuple(server.endpoint for server in self.servers if not server.down)
        rest = [endpoint for endpoint in self._address.endpoints if endpoint not in known]
        asked = (*known, *rest)
        teller, reply = _first_answer(
            asked,
            self._address.greeting,
            lambda: command("CLUSTER", "SLOTS"),
            "no node of the cluster answers",
        )
        servers = {server.endpoint: server for server in self.servers}
        found: dict[Endpoint, Server] = {}
        of_slot: list[Server | None] = [None] * SLOTS
        for first, last, master, *_ in reply:
            host = master[0].decode() if master[0] else teller.host
            endpoint = Endpoint(host, int(master[1]))
            server = found.get(endpoint) or servers.get(endpoint)
            if server is None:
                server = self._make(endpoint)
                before = self._of_slot[first]
                server.down = before is not None and before.down  # probed before it is relied on
            found[endpoint] = server
            of_slot[first : last + 1] = [server] * (last + 1 - first)
        self._of_slot = of_slot
        self.servers = tuple(found.values())
        for endpoint, server in servers.items():
            if endpoint not in found:
                server.close()


def _first_answer(
    endpoints: tuple[Endpoint, ...], greeting: Any, ask: Callable[[], Any], nobody: str
) -> tuple[Endpoint, Any]:
    """The first that answers with something, and what it says."""
    said = nobody
    for endpoint in endpoints:
        try:
            link = Link(open_socket(endpoint, greeting))
        except Lost as error:
            said = f"{nobody} ({error})"
            continue
        try:
            reply = link.converse(ask(), monotonic() + CONNECT_SECONDS)
        except (Lost, Spoilt) as error:
            said = f"{nobody} ({endpoint}: {error})"
            continue
        finally:
            link.close()
        if reply:
            return endpoint, reply
    raise Lost(said)
