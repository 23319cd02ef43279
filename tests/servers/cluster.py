"""A cluster: slots that move, masters that die."""

from __future__ import annotations

from itertools import pairwise
from types import TracebackType
from typing import Any, Self

from redis.cluster import RedisCluster

from tests.servers.ports import HOST
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until

SLOTS = 16_384
MASTERS = 3


class Cluster:
    """Three masters that share the slots; with `replicas`, one for each, which takes over when its master is lost.

    `nodes` are the masters as they began, then their replicas in the same order. Being formed takes two seconds: so long a
    node that has just been started does not dare to serve.
    """

    def __init__(self, *arguments: str, replicas: bool = False, program: str = REDIS_7) -> None:
        # A fail-over is to come soon, but a master that stands still for two seconds is no reason for one. Without replicas there is none:
        # there a master that a test freezes, however long that takes on a busy machine, shall not make the others refuse to serve.
        node_timeout_ms = 3_000 if replicas else 20_000
        options = ["--cluster-enabled", "yes", "--cluster-node-timeout", str(node_timeout_ms)]
        options += ["--cluster-replica-validity-factor", "0", *arguments]
        self.replicas = replicas
        self.nodes: list[Server] = []
        self._moves: dict[int, tuple[Server, Server]] = {}
        self._clients: list[RedisCluster] = []
        try:
            for _ in range(MASTERS * 2 if replicas else MASTERS):
                self.nodes.append(Server(program, *options))
            self._form()
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
        seeds = ",".join(f"{HOST}:{node.port}" for node in self.nodes[:MASTERS])
        return f"redis+cluster://{seeds}"

    def client(self, **options: Any) -> RedisCluster:
        client = RedisCluster(HOST, self._living()[0].port, socket_timeout=5, **options)
        self._clients.append(client)
        return client

    def flush(self) -> None:
        for master in self.masters():
            master.ask("FLUSHALL")

    def masters(self) -> list[Server]:
        """Who serves now, in the order of the slots."""
        return [self.node_of_slot(slots[0]) for slots in _shares()]

    def slot_of_key(self, key: str) -> int:
        return int(_cluster(self._living()[0], "KEYSLOT", key))

    def node_of_slot(self, slot: int) -> Server:
        """The master that serves it now."""
        for node in self._living():
            if (owner := self._owner(slot, node)) is not None:
                return owner
        raise LookupError(f"nobody serves slot {slot}")

    def move_slot(self, slot: int, to: Server) -> None:
        """Give a slot with all its keys to another master, as resharding does."""
        self.begin_move(slot, to)
        self.finish_move(slot)

    def begin_move(self, slot: int, to: Server) -> None:
        """Open the move. From now on the old master says ASK for keys that it does not have."""
        source = self.node_of_slot(slot)
        _cluster(to, "SETSLOT", slot, "IMPORTING", _id(source))
        _cluster(source, "SETSLOT", slot, "MIGRATING", _id(to))
        self._moves[slot] = (source, to)

    def carry_keys(self, slot: int, count: int = 1_000) -> int:
        """Bring so many keys of an open move over; how many there were."""
        source, to = self._moves[slot]
        keys = _cluster(source, "GETKEYSINSLOT", slot, count)
        if keys:
            source.ask("MIGRATE", HOST, to.port, "", 0, 5_000, "REPLACE", "KEYS", *keys)
        return len(keys)

    def finish_move(self, slot: int) -> None:
        """Bring the rest over and close the move: from now on the old master says MOVED."""
        while self.carry_keys(slot):
            pass
        source, to = self._moves.pop(slot)
        others = [node for node in self.masters() if node not in (source, to)]
        for node in (to, source, *others):
            _cluster(node, "SETSLOT", slot, "NODE", _id(to))
        until(lambda: self._all_see(slot, to), f"all know that slot {slot} has moved")

    def kill_master(self, index: int) -> Server:
        """Kill the master of this third of the slots, wait until its replica serves them, and return the dead."""
        slot = _shares()[index][0]
        dead = self.node_of_slot(slot)
        dead.kill()
        until(lambda: self._all_agree_on_another(slot, dead), "a replica has taken over")
        self.until_whole()
        return dead

    def until_whole(self) -> None:
        """Wait until all living nodes serve, and all living replicas follow: after a restart, for example."""
        until(lambda: all(map(_is_content, self._living())), "the cluster is whole")

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        for node in self.nodes:
            node.stop()

    def _form(self) -> None:
        masters, replicas = self.nodes[:MASTERS], self.nodes[MASTERS:]
        for epoch, (master, slots) in enumerate(zip(masters, _shares(), strict=True), start=1):
            _cluster(master, "ADDSLOTS", *slots)
            # Otherwise the nodes would find out that their epochs are the same, and settle that while tests already run.
            _cluster(master, "SET-CONFIG-EPOCH", epoch)
        for node in self.nodes[1:]:
            _cluster(node, "MEET", HOST, self.nodes[0].port)
        until(lambda: all(map(self._knows_all, self.nodes)), "the nodes know each other")
        for master, replica in zip(masters, replicas, strict=False):
            _cluster(replica, "REPLICATE", _id(master))
        self.until_whole()
        until(lambda: all(map(self._knows_replicas, self.nodes)), "all know the replicas")

    def _knows_all(self, node: Server) -> bool:
        flags = _flags(node)
        return len(flags) == len(self.nodes) and not any("handshake" in one for one in flags)

    def _knows_replicas(self, node: Server) -> bool:
        return sum("slave" in one for one in _flags(node)) == len(self.nodes) - MASTERS

    def _living(self) -> list[Server]:
        return [node for node in self.nodes if node.alive]

    def _owner(self, slot: int, seen_by: Server) -> Server | None:
        for first, last, (_, port, *_), *_ in _cluster(seen_by, "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        return None

    def _all_see(self, slot: int, owner: Server) -> bool:
        return all(self._owner(slot, node) is owner for node in self._living())

    def _all_agree_on_another(self, slot: int, than: Server) -> bool:
        owners = {self._owner(slot, node) for node in self._living()}
        return len(owners) == 1 and than not in owners


def _shares() -> list[range]:
    ends = [SLOTS * part // MASTERS for part in range(MASTERS + 1)]
    return [range(first, end) for first, end in pairwise(ends)]


def _cluster(node: Server, *words: Any) -> Any:
    return node.ask("CLUSTER", *words)


def _id(node: Server) -> str:
    return str(_cluster(node, "MYID").decode())


def _flags(node: Server) -> list[str]:
    """Of each node that this one has heard of."""
    return [line.split()[2] for line in _cluster(node, "NODES").decode().splitlines()]


def _is_content(node: Server) -> bool:
    role, *rest = node.ask("ROLE")
    follows = role == b"master" or rest[2] == b"connected"
    return follows and "cluster_state:ok" in str(_cluster(node, "INFO"))
