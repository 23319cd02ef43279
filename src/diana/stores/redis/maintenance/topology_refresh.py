"""The store's own background thread: it finds the servers and sends the heartbeat of this node.

Each server has a thread of its own beside it (`redis_client/reconnector.py`). No request waits for any of them longer than its budget.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from threading import Thread, current_thread
from time import monotonic

from diana.core.counter import CounterSpec
from diana.core.node_share import Share, Shares
from diana.redis_client.handshake import CONNECT_SECONDS, patience
from diana.redis_client.reconnector import Reconnector
from diana.redis_client.redis_server import Server, ServerSettings
from diana.redis_client.redis_url import Endpoint, RedisAddress
from diana.redis_client.reply_errors import (
    BadCounter,
    Failure,
    Moved,
    NoConnection,
    ServerRefused,
    UnknownOutcome,
    Unreachable,
)
from diana.redis_client.thread_connection import ThreadConnection
from diana.redis_client.topology import slot_of_key, topology_from_address
from diana.runtime.background_thread import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    Wakeup,
    chance,
    join_thread,
    start_thread,
)
from diana.runtime.fork import fork_safe_lock
from diana.runtime.throttled_log import ThrottledLog
from diana.stores.arrival_rates import Arrivals
from diana.stores.redis.local_fallback import Fallback
from diana.stores.redis.maintenance.heartbeat import BEAT_SECONDS, Membership, exchange_arrivals
from diana.stores.redis.maintenance.overrides_refresh import StoredOverrides
from diana.stores.redis.maintenance.script_publisher import Publisher
from diana.stores.redis.pending_refunds import PendingRefunds
from diana.stores.redis.protocol.commands import USE_CLUSTER

log = logging.getLogger("diana")


class TopologyRefresh:
    settles = True
    """What was counted here while the store was lost is charged to it without a request's doing."""

    def __init__(
        self,
        address: RedisAddress,
        fallback: Fallback,
        shares: Shares,
        namespace: str,
        budget: float,
        count: Callable[..., None],
        when_set_back: Callable[[], None],
        is_denied: Callable[[list[bytes]], bool],
        forget_limits: Callable[[], None],
        overrides: StoredOverrides,
        arrivals: Arrivals,
        refunds: PendingRefunds,
        zone: str | None = None,
    ) -> None:
        self.refunds = refunds
        refunds.when_added = self._wake_for
        self._arrivals = arrivals
        self._overrides = overrides
        self._fallback = fallback
        self._shares = shares
        self._namespace = namespace
        self._budget = budget
        self._count = count
        self._notices = ThrottledLog()
        self._membership = Membership(namespace, shares.share.weight, zone)
        self._thread: Thread | None = None
        self._starting = fork_safe_lock()
        self._start_again = 0.0
        self._wakeup = Wakeup()
        self._connectors: dict[Server, Reconnector] = {}
        self._controls: dict[Server, ThreadConnection] = {}
        self._is_closed = False
        self._must_look = True
        self.has_looked = False
        """It has found out for the first time which servers there are, or that none is."""
        self._next_beat = 0.0
        settings = ServerSettings(
            address.login,
            budget,
            count,
            self._notices,
            self.wanted_by,
            when_set_back,
            is_denied,
            slot_of_key if address.kind == "cluster" else None,
        )

        def server_at(endpoint: Endpoint) -> Server:
            return Server(endpoint, settings)

        self.topology = topology_from_address(address, server_at, patience(budget))
        self._publisher = Publisher(self.server_of, namespace, self._notices, forget_limits)

    def ensure(self) -> None:
        """Be there: at first, and again in a forked child."""
        if self._thread is None and not self._is_closed and monotonic() >= self._start_again:
            with self._starting:
                if self._thread is None:
                    self._start_again = monotonic() + LONGEST_PAUSE
                    self._thread = start_thread(self._work, "diana-keeper", self._notices)
            if self._thread is None:
                self._do_without_thread()

    def _do_without_thread(self) -> None:
        """No connection will come, so no request waits for one. The requests that come after a pause try again to start it."""
        self.has_looked = True
        for server in self.topology.servers:
            server.breaker.open(NoConnection("no background thread can be started"))

    def wake(self) -> None:
        self.ensure()
        self._wakeup.wake()

    def wanted_by(self, server: Server) -> None:
        """It is short of connections, or lost."""
        connector = self._connectors.get(server)
        if connector is not None:
            connector.wake()
        if connector is None or server.is_lost:
            self.wake()

    def _wake_for(self, key: bytes) -> None:
        server = self.server_of(key)
        if server is not None:
            self.wanted_by(server)

    def look_around(self) -> None:
        """A key was not where it should be."""
        if not self.topology.has_slots:
            self._notices.warn_once("cluster", USE_CLUSTER)
        self._must_look = True
        self.wake()

    def publish_limit(self, key: bytes, meter: CounterSpec) -> None:
        """Make a limit known to other gateways."""
        self._publisher.add_limit(key, meter)

    @property
    def node(self) -> str:
        """What this node is called."""
        return self._membership.id

    def tell_of_leases(self, told: Callable[[], dict[str, int]]) -> None:
        """With every heartbeat: what this node holds."""
        self._membership.leases = told

    def slot_of(self, key: bytes) -> int:
        return slot_of_key(key) if self.topology.has_slots else 0

    def server_of(self, key: bytes) -> Server | None:
        return self.topology.server_of_slot(self.slot_of(key))

    def stop(self) -> None:
        """Do not wait for it."""
        self._is_closed = True
        self._wakeup.wake()

    def close(self) -> None:
        self.stop()
        thread = self._thread
        if thread is not None and thread is not current_thread():
            join_thread(thread, 2 * CONNECT_SECONDS)
        for connector in list(self._connectors.values()):
            connector.join(CONNECT_SECONDS)
        self._let_go()

    def abandon(self) -> None:
        """In a forked child, which has no thread of ours: close our copies of what is the parent's, touching no lock and no loop."""
        self._is_closed = True
        for server in self.topology.servers:
            server.abandon()
        for control in list(self._controls.values()):
            control.hang_up()
        for connector in list(self._connectors.values()):
            connector.abandon()

    def _work(self) -> None:
        while not self._is_closed:
            try:
                pause = self._round()
            except Exception:
                log.exception("the background thread of the store failed; it goes on")
                pause = LONGEST_PAUSE
            if not self._is_closed:
                self._wakeup.sleep(pause)
        self._leave()
        self._let_go()

    def _let_go(self) -> None:
        """By whichever is last: a store that was dropped has no other, and one that is closed may not wait for the thread."""
        for connector in list(self._connectors.values()):
            connector.stop()
        for server in self.topology.servers:
            server.close()
        for control in list(self._controls.values()):
            control.hang_up()
        self._controls.clear()

    def _round(self) -> float:
        """Do what is due; gives how long there is nothing to do."""
        is_due = monotonic() >= self._next_beat
        if self._must_look or self.topology.changes_silently or self._some_are_lost():
            self._look(is_due)
        self._attend_to_servers()
        if is_due:
            self._next_beat = monotonic() + BEAT_SECONDS
            self._beat()
            self._refresh_overrides()
            self._exchange_arrivals()
        more = self._publish_some()
        return 0.0 if more else max(0.001, self._next_beat - monotonic())

    def _some_are_lost(self) -> bool:
        servers = self.topology.servers
        return not servers or any(server.is_lost for server in servers)

    def _look(self, is_due: bool) -> None:
        if not (self._must_look or is_due or not self.has_looked):
            return
        self._must_look = False
        try:
            self.topology.look()
        except Failure as failure:
            self._notices.warn_once("look", f"store not found: {failure}; trying again")
            if not self.topology.servers:
                self.has_looked = True
                self._wakeup.sleep(FIRST_PAUSE + chance.random() * LONGEST_PAUSE)
                self._must_look = True
        else:
            self._notices.resolve("look")
        self.has_looked = True

    def _attend_to_servers(self) -> None:
        servers = self.topology.servers
        for gone in [known for known in self._connectors if known not in servers]:
            self._connectors.pop(gone).stop()
        for gone in [known for known in self._controls if known not in servers]:
            self._controls.pop(gone).hang_up()
        for server in servers:
            if server not in self._connectors:
                self._connectors[server] = Reconnector(
                    server,
                    self._publisher,
                    self._fallback,
                    self.refunds,
                    self._budget,
                    self._probe_key,
                    lambda server, key: self.server_of(key) is server,
                    self.slot_of,
                    self.look_around,
                    self._count,
                    self._notices,
                )
            self._connectors[server].ensure()

    def _beat(self) -> None:
        home = self.server_of(self._membership.keys[0])
        if home is None or home.is_lost:
            return
        try:
            fleet = self._control(home).exchange(self._membership.beat())
            self._shares.share = Share(self._shares.share.weight, fleet.weight)
        except Moved:
            self.look_around()
        except (BadCounter, ServerRefused) as failure:
            self._notices.warn_once("heartbeat", f"heartbeat failed: {failure}")
        except UnknownOutcome as failure:
            home.breaker.note(failure, self._control(home).sent)
        except Unreachable as failure:
            home.cannot_connect(failure)
        else:
            self._notices.resolve("heartbeat")

    def _exchange_arrivals(self) -> None:
        """With every heartbeat, if keys are counted at all."""
        home = self.server_of(self._membership.keys[0])
        if not self._arrivals or home is None or home.is_lost:
            return
        try:
            self._control(home).exchange(exchange_arrivals(self._namespace, self._arrivals))
        except UnknownOutcome as failure:
            home.breaker.note(failure, self._control(home).sent)
        except (BadCounter, ServerRefused) as failure:
            self._notices.warn_once("arrivals", f"arrivals cannot be summed: {failure}")
        except Failure:
            return  # with the next heartbeat
        else:
            self._notices.resolve("arrivals")

    def _refresh_overrides(self) -> None:
        """With every heartbeat. What is known stays while the store is lost."""
        home = self.server_of(self._overrides.keys[0])
        if home is None or home.is_lost:
            return
        try:
            self._control(home).exchange(self._overrides.refresh())
        except UnknownOutcome as failure:
            home.breaker.note(failure, self._control(home).sent)
        except (BadCounter, ServerRefused) as failure:
            self._notices.warn_once("overrides", f"overrides cannot be read: {failure}")
        except Failure:
            return  # asked again with the next heartbeat
        else:
            self._notices.resolve("overrides")

    def _publish_some(self) -> bool:
        """A few limits for other gateways to find; whether there are more."""
        for server, exchanges in self._publisher.limits_due().items():
            try:
                answers = self._control(server).exchange_all(exchanges)
            except UnknownOutcome as failure:
                server.breaker.note(failure, self._control(server).sent)
            except Failure:
                continue  # they are published again by and by
            else:
                if any(isinstance(answer, Moved) for answer in answers):
                    self.look_around()
        return self._publisher.has_limits_due

    def _leave(self) -> None:
        if not self._membership.may_leave:
            return
        server = self.server_of(self._membership.keys[0])
        if server is not None and not server.is_lost and self._control(server).is_connected:
            with suppress(Failure):
                self._control(server).exchange(self._membership.leave())

    def _control(self, server: Server) -> ThreadConnection:
        control = self._controls.get(server)
        if control is None:
            control = self._controls[server] = ThreadConnection(server)
        return control

    def _probe_key(self, server: Server) -> bytes | None:
        """A key that this server has."""
        keys = (f"{self._namespace}:probe:{number}".encode() for number in range(100_000))
        return next((key for key in keys if self.server_of(key) is server), None)
