"""The background thread: everything that may take its time, so that no request ever has to.

It finds the servers, opens connections ahead of need, loads the scripts, says that this node lives, and, while a server is lost, probes it
with the real script, settles what was counted here meanwhile, and closes the breaker. Nobody waits for it longer than their budget.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import Event, Thread, current_thread
from time import monotonic

from diana.core.limit import Limit
from diana.core.meter import Meter, meter_from_limit
from diana.core.plugins import algorithms
from diana.stores.lock import fork_safe_lock
from diana.stores.redis.background.connector import Connector
from diana.stores.redis.background.control import EXPECTED, Messenger
from diana.stores.redis.background.membership import BEAT_SECONDS, Registration
from diana.stores.redis.background.publisher import Publisher
from diana.stores.redis.connection.server import Server
from diana.stores.redis.connection.threads import CONNECT_SECONDS
from diana.stores.redis.connection.topology import slot_of_key, topology_from_address
from diana.stores.redis.fallback import Debt, Fallback
from diana.stores.redis.protocol.commands import (
    WRITE_CLUSTER,
    Lost,
    Moved,
    Spoilt,
    acquire,
    hear,
)
from diana.stores.redis.protocol.script import wire_limit
from diana.stores.redis.settling import settle
from diana.stores.redis.url import Address, Endpoint

log = logging.getLogger("diana")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0


class Keeper:
    leaves_debts = False

    def __init__(
        self,
        address: Address,
        fallback: Fallback,
        namespace: str,
        budget: float,
        count: Callable[..., None],
        when_set_back: Callable[[], None],
    ) -> None:
        self._when_set_back = when_set_back
        self._greeting = address.greeting
        self._has_slots = address.kind == "cluster"
        self._fallback = fallback
        self._namespace = namespace
        self._budget = budget
        self._count = count
        self._registration = Registration(namespace)
        self._thread: Thread | None = None
        self._starting = fork_safe_lock()
        self._called: SimpleQueue[None] = SimpleQueue()
        self._connectors: dict[Server, Connector] = {}
        self._closed = False
        self._look = True
        self.looked = Event()
        """It has found out for the first time who is there, or that nobody is."""
        self._failures: dict[Server, int] = {}
        self._due: dict[Server, float] = {}
        self._next_beat = 0.0
        self.topology = topology_from_address(address, self._server)
        self._messenger = Messenger(self.topology)
        self._publisher = Publisher(self._messenger, namespace)

    def ensure(self) -> None:
        """Be there: at first, and again in a forked child."""
        if self._thread is None and not self._closed:
            with self._starting:
                if self._thread is None:
                    self._thread = Thread(target=self._work, name="diana-keeper", daemon=True)
                    self._thread.start()

    def wake(self) -> None:
        self.ensure()
        self._called.put(None)

    def wanted_by(self, server: Server) -> None:
        """It is short of connections, or lost."""
        connector = self._connectors.get(server)
        if connector is not None and not server.down:
            connector.wake()
        else:
            self.wake()

    def look_around(self) -> None:
        """A key was not where it should be."""
        if not self.topology.has_slots:
            self._messenger.complain("cluster", WRITE_CLUSTER)
        self._look = True
        self.wake()

    def make_known(self, key: bytes, meter: Meter) -> None:
        """Publish a limit, for other gateways."""
        self._publisher.add_limit(key, meter)

    def stop(self) -> None:
        """Do not wait for it."""
        self._closed = True
        self._called.put(None)

    def close(self) -> None:
        self.stop()
        thread = self._thread
        if thread is not None and thread is not current_thread():
            thread.join(2 * CONNECT_SECONDS)
        for connector in list(self._connectors.values()):
            connector.join(CONNECT_SECONDS)
        self._let_go()

    def abandon(self) -> None:
        """In a forked child, which has no thread of ours: let go of what is the parent's, touching no lock and no loop."""
        for server in self.topology.servers:
            server.abandon()
        self._messenger.hang_up_all_but(())

    def _server(self, endpoint: Endpoint) -> Server:
        slot_of = slot_of_key if self._has_slots else None
        server = Server(
            endpoint, self._greeting, self._budget, self.wanted_by, self._count, slot_of
        )
        server.clock.when_set_back = self._when_set_back
        return server

    def _work(self) -> None:
        while not self._closed:
            try:
                pause = self._round()
            except Exception:
                log.exception("the keeper of the store stumbled; it goes on")
                pause = LONGEST_PAUSE
            self._wait(pause)
        self._leave()
        self._let_go()

    def _wait(self, seconds: float) -> None:
        """Until called, at most so long; however often it was called meanwhile."""
        with suppress(Empty):
            self._called.get(timeout=max(0.001, seconds))
            while True:
                self._called.get_nowait()

    def _let_go(self) -> None:
        """By whoever is last: a store that was dropped has nobody else, and one that is closed may not wait for the thread."""
        for connector in list(self._connectors.values()):
            connector.stop()
        for server in self.topology.servers:
            server.close()
        self._messenger.hang_up_all_but(())

    def _round(self) -> float:
        """Do what is due; gives how long there is nothing to do."""
        self._look_if_needed()
        for server in self.topology.servers:
            if server.down:
                self._heal_if_due(server)
            if not server.down:
                self._serve(server)
        if monotonic() >= self._next_beat:
            self._next_beat = monotonic() + BEAT_SECONDS
            self._beat()
        waits = [self._due.get(server, 0.0) for server in self.topology.servers if server.down]
        return max(0.0, min([self._next_beat, *waits]) - monotonic())

    def _look_if_needed(self) -> None:
        servers = self.topology.servers
        if not (self._look or not servers or any(server.down for server in servers)):
            return
        self._look = False
        try:
            self.topology.look()
        except Lost as error:
            self._messenger.complain("look", f"the store cannot be found: {error}; trying on")
            if not servers:
                self.looked.set()
                self._wait(FIRST_PAUSE + random.random() * LONGEST_PAUSE)  # noqa: S311
        else:
            self._messenger.is_well("look")
        self.looked.set()
        self._messenger.hang_up_all_but(self.topology.servers)
        for server in [known for known in self._connectors if known not in self.topology.servers]:
            self._connectors.pop(server).stop()

    def _serve(self, server: Server) -> None:
        """Connections, and what others find there."""
        connector = self._connectors.get(server)
        if connector is None:
            self._connectors[server] = Connector(server)
        else:
            connector.wake()
        if not server.known_to_it:
            with self._troubles_of(server):
                self._publisher.publish(server)

    def _heal_if_due(self, server: Server) -> None:
        if monotonic() < self._due.get(server, 0.0):
            return
        try:
            self._probe(server)
            self._publisher.publish(server)
            self._settle(server)
        except EXPECTED as error:
            server.still_lost(error)
            self._messenger.hang_up(server)
            failures = self._failures[server] = self._failures.get(server, -1) + 1
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures, 10))
            self._due[server] = monotonic() + pause * (0.5 + random.random() / 2)  # noqa: S311
            return
        self._failures.pop(server, None)
        self._due.pop(server, None)
        server.found()
        self._serve(server)
        with suppress(*EXPECTED):
            self._settle(server)  # what was admitted here while it was settled

    def _probe(self, server: Server) -> None:
        """The real script, writing, within the budget."""
        self._messenger.hang_up(server)
        self._messenger.link(server)  # connecting may take longer
        meter = _probe_meter(self._namespace)
        key = self._key_on(server)
        deadline = monotonic() + self._budget
        request = ["take", 1, wire_limit(meter), 1]
        talk = acquire(server.clock, [key], request, None, deadline)
        reply = self._messenger.converse(server, talk, deadline)
        if not isinstance(reply[1], list):
            raise Lost(f"a probe failed: {reply[1]!r}")

    def _beat(self) -> None:
        home = self._messenger.server_of(self._registration.keys[0])
        if home is not None and not home.down:
            with self._troubles_of(home):
                self._fallback.nodes = max(
                    1, self._messenger.converse(home, self._registration.beat())
                )
        for server in self.topology.servers:
            if not server.down:
                with self._troubles_of(server):
                    self._messenger.converse(server, hear(server.clock))
                    self._publisher.publish_if_flushed(server)
                    self._settle(server)
        for server, talk in self._publisher.limits_due():
            with self._troubles_of(server):
                self._messenger.converse(server, talk)

    @contextmanager
    def _troubles_of(self, server: Server) -> Iterator[None]:
        """What goes wrong with one server is not the others' fault."""
        try:
            yield
        except Moved:
            self.look_around()
        except Spoilt as error:
            self._messenger.complain("beat", f"this node cannot say that it lives: {error}")
        except Lost as error:
            if "NOPERM" in str(error):
                self._messenger.complain("beat", f"this node may not say that it lives: {error}")
            else:
                server.lost(error)

    def _settle(self, server: Server) -> None:
        def belongs(key: bytes) -> bool:
            return self._messenger.server_of(key) is server

        if not self._fallback.owes():
            return
        debts: list[tuple[bytes, Debt]] = list(self._fallback.settled(belongs).items())
        unsent = dict(debts)
        try:
            for talk, some in settle(server.clock, debts, self._messenger.slot_of, CONNECT_SECONDS):
                for key, _ in some:
                    del unsent[key]
                self._messenger.converse(server, talk)
                self._count("settled", sum(debt.admitted for _, debt in some))
        finally:
            self._fallback.owe(unsent)

    def _leave(self) -> None:
        server = self._messenger.server_of(self._registration.keys[0])
        if server is not None and not server.down and self._messenger.knows(server):
            with suppress(*EXPECTED):
                self._messenger.converse(server, self._registration.leave())

    def _key_on(self, server: Server) -> bytes:
        """A key that this server has."""
        keys = (f"{self._namespace}:probe:{number}".encode() for number in range(100_000))
        mine: Iterable[bytes] = (key for key in keys if self._messenger.server_of(key) is server)
        try:
            return next(iter(mine))
        except StopIteration:
            raise Lost("it has no slots") from None


def _probe_meter(namespace: str) -> Meter:
    limit = Limit(1_000_000, 1_000_000)
    return meter_from_limit(f"{namespace}:probe", limit, algorithms()["TB"], {})
