"""The keeper's own line to each server, and its complaints: once each, not once a second."""

from __future__ import annotations

import logging
from collections.abc import Collection
from time import monotonic
from typing import Any

from diana.stores.redis.connection.server import Server
from diana.stores.redis.connection.threads import CONNECT_SECONDS, Link, open_socket
from diana.stores.redis.connection.topology import Topology, slot_of_key
from diana.stores.redis.protocol.commands import Lost, Moved, NoLink, Spoilt, Talk

log = logging.getLogger("diana")

EXPECTED = (Lost, Moved, NoLink, Spoilt)


class Messenger:
    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._links: dict[Server, Link] = {}
        self._complained: set[str] = set()

    def converse(self, server: Server, talk: Talk, deadline: float | None = None) -> Any:
        """What a talk comes to. It may take its time: only the keeper waits."""
        end = monotonic() + CONNECT_SECONDS if deadline is None else deadline
        try:
            return self.link(server).converse(talk, end)
        except Lost:
            self.hang_up(server)
            raise
        except (TypeError, ValueError, IndexError):  # by reading what no server says
            self.hang_up(server)
            raise Lost("this is no answer of a store") from None

    def link(self, server: Server) -> Link:
        link = self._links.get(server)
        if link is None or link.is_stale():
            self.hang_up(server)
            link = self._links[server] = Link(open_socket(server.endpoint, server.greeting))
        return link

    def knows(self, server: Server) -> bool:
        return server in self._links

    def hang_up(self, server: Server) -> None:
        link = self._links.pop(server, None)
        if link is not None:
            link.close()

    def hang_up_all_but(self, servers: Collection[Server]) -> None:
        for server in [known for known in self._links if known not in servers]:
            self.hang_up(server)

    def slot_of(self, key: bytes) -> int:
        return slot_of_key(key) if self._topology.has_slots else 0

    def server_of(self, key: bytes) -> Server | None:
        return self._topology.server_of_slot(self.slot_of(key))

    def complain(self, about: str, message: str) -> None:
        """Once, until it is well again."""
        if about not in self._complained:
            self._complained.add(about)
            log.warning("%s", message)

    def has_complained(self, about: str) -> bool:
        return about in self._complained

    def is_well(self, about: str) -> None:
        self._complained.discard(about)
