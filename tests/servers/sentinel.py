"""Sentinels that watch a master and a replica, and change their parts."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from tests.servers.ports import HOST
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until

SENTINELS = 3
QUORUM = 2


class Sentinel(Server):
    """One of those who watch."""

    ready = b"+monitor master"

    def __init__(self, service: str, master: Server) -> None:
        self._orders = (
            f"sentinel monitor {service} {HOST} {master.port} {QUORUM}\n"
            f"sentinel down-after-milliseconds {service} 2500\n"
            f"sentinel failover-timeout {service} 3000\n"
        )
        super().__init__(REDIS_7)

    def hurry(self) -> None:
        """Look often. By itself a sentinel looks round every ten seconds."""
        # What it saw three looks ago, or heard five questions ago, is worth nothing to it. Too short, and it has no replica to
        # choose. PING-PERIOD stays: five of them must hold one look at a replica of a dead master, always a second apart.
        self.ask("SENTINEL", "DEBUG", "INFO-PERIOD", 500)
        self.ask("SENTINEL", "DEBUG", "ASK-PERIOD", 300)
        # A hiccup of a busy machine shall not make it stop work for half a minute.
        self.ask("SENTINEL", "DEBUG", "TILT-PERIOD", 100)
        self.talk_every(100)

    def talk_every(self, milliseconds: int) -> None:
        """How often it tells the others what it thinks; after four times that it corrects a server that thinks otherwise."""
        self.ask("SENTINEL", "DEBUG", "PUBLISH-PERIOD", milliseconds)

    def _command(self, port: int) -> list[str]:
        # A sentinel keeps what it knows in this file; started again, it goes on from there.
        known = self.folder / "sentinel.conf"
        if not known.exists():
            known.write_text(self._orders)
        return [self.program, str(known), "--sentinel", "--bind", HOST, "--port", str(port)]


class SentinelGroup:
    """A master, a replica and three sentinels, ready to fail over within a second or two."""

    def __init__(self, service: str = "limits", *arguments: str) -> None:
        self.service = service
        self.servers: list[Server] = []
        self.sentinels: list[Sentinel] = []
        try:
            master = Server(REDIS_7, *arguments)
            self.servers.append(master)
            follow = ("--replicaof", HOST, str(master.port))
            self.servers.append(Server(REDIS_7, *arguments, *follow))
            for _ in range(SENTINELS):
                self.sentinels.append(Sentinel(service, master))
            for sentinel in self.sentinels:
                sentinel.hurry()
            self.until_whole()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        seeds = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{seeds}/{self.service}"

    @property
    def master(self) -> Server:
        """Whom most sentinels call the master now."""
        ports = sorted(self._port_of_master(sentinel) for sentinel in self._living())
        agreed = ports[len(ports) // 2]
        return next(server for server in self.servers if server.port == agreed)

    def fail_over(self) -> Server:
        """Let master and replica change parts, as an operator would; wait until they have, and return the new master."""
        old = self.master
        # Who leads notices the promotion within a second. Until then the others shall not undo it.
        self._talk_every(1_000)
        self._living()[0].ask("SENTINEL", "FAILOVER", self.service)
        until(lambda: self._has_taken_over_from(old), "the replica is the master")
        self._talk_every(100)
        self.until_whole()
        return self.master

    def kill_master(self) -> Server:
        """Kill the master, wait until the replica takes writes, and return the dead, who may be started again."""
        dead = self.master
        dead.kill()
        until(lambda: self._has_taken_over_from(dead), "the replica is the master")
        return dead

    def until_whole(self) -> None:
        """Wait until the replica follows the master, and every sentinel would know how to fail over."""
        until(self._is_whole, "master, replica and sentinels know each other")

    def stop(self) -> None:
        for server in (*self.sentinels, *self.servers):
            server.stop()

    def _living(self) -> list[Sentinel]:
        return [sentinel for sentinel in self.sentinels if sentinel.alive]

    def _talk_every(self, milliseconds: int) -> None:
        for sentinel in self._living():
            sentinel.talk_every(milliseconds)

    def _port_of_master(self, sentinel: Sentinel) -> int:
        _, port = sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
        return int(port)

    def _has_taken_over_from(self, old: Server) -> bool:
        (new,) = (server for server in self.servers if server is not old)
        agreed = all(self._port_of_master(sentinel) == new.port for sentinel in self._living())
        return agreed and bool(new.ask("SET", "diana-sentinel-probe", "", "PX", 1))

    def _is_whole(self) -> bool:
        master = self.master
        (replica,) = (server for server in self.servers if server is not master)
        follows = [b"slave", HOST.encode(), master.port, b"connected"]
        return replica.ask("ROLE")[:4] == follows and all(map(self._is_informed, self._living()))

    def _is_informed(self, sentinel: Sentinel) -> bool:
        replicas = sentinel.ask("SENTINEL", "REPLICAS", self.service)
        others = sentinel.ask("SENTINEL", "SENTINELS", self.service)
        return (
            [one[b"flags"] for one in replicas] == [b"slave"]
            and [one[b"master-link-status"] for one in replicas] == [b"ok"]
            and [int(one[b"master-port"]) for one in replicas] == [self.master.port]
            and [one[b"flags"] for one in others] == [b"sentinel"] * (len(self.sentinels) - 1)
        )
