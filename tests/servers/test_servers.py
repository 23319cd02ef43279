"""The servers do what they say, so that a test that fails on them tells of Diana."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from redis.exceptions import AskError, MovedError

from tests.servers.certificates import Certificates
from tests.servers.cluster import Cluster
from tests.servers.etcd import Etcd
from tests.servers.faketime import ServerInItsOwnTime
from tests.servers.faults import JUNK, delaying
from tests.servers.nginx import Nginx
from tests.servers.ports import HOST, free_port
from tests.servers.programs import PROGRAMS, REDIS_6, REDIS_7, VALKEY_9
from tests.servers.proxy import FaultProxy
from tests.servers.sentinel import SentinelGroup
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.servers.zookeeper import ZooKeeper
from tests.shake.processes import descendants_of, state_of

PING, PONG = b"PING\r\n", b"+PONG\r\n"
SOON = 0.1
"""Seconds in which a healthy server has answered many times over: for what must not come."""


def is_gone(pid: int) -> bool:
    # In a container nobody may collect the dead.
    return state_of(pid) in ("", "Z")


def test_the_three_programs_are_what_they_are_called() -> None:
    said = {
        name: subprocess.run([program, "--version"], capture_output=True, text=True).stdout
        for name, program in PROGRAMS.items()
    }
    assert "Valkey server v=9." in said["Valkey 9"]
    assert "Redis server v=7." in said["Redis 7"]
    assert "Redis server v=6.2." in said["Redis 6.2"]


def test_a_server_is_ready_empty_and_our_own(any_server: Server, server: redis.Redis) -> None:
    assert server.info("server")["process_id"] == any_server.pid
    assert server.dbsize() == 0
    assert server.config_get("save") == {"save": ""}
    assert server.config_get("appendonly") == {"appendonly": "no"}
    for url in (any_server.url, any_server.unix_url):
        with redis.Redis.from_url(url) as client:
            assert client.ping()


def test_a_frozen_server_answers_when_it_thaws(redis7: Server) -> None:
    with socket.create_connection((HOST, redis7.port), timeout=SOON) as line:
        redis7.freeze()
        line.sendall(PING)
        with pytest.raises(TimeoutError):
            line.recv(1)
        redis7.thaw()
        line.settimeout(10)
        assert line.recv(99) == PONG


def test_a_server_comes_back_empty_on_the_same_port() -> None:
    with Server(REDIS_6) as server:
        client, pid, port = server.client(), server.pid, server.port
        client.set("k", "v")
        server.freeze()
        server.kill()
        assert not server.alive
        with pytest.raises(redis.ConnectionError):
            client.ping()
        server.restart()
        assert (server.port, server.pid == pid) == (port, False)
        assert client.dbsize() == 0


def test_nginx_takes_its_workers_with_it() -> None:
    """They would keep the port, and whatever asks there next would hear of them."""
    with Nginx({"a": "= /a"}) as nginx:
        workers = descendants_of(nginx.pid)
        assert workers
    until(lambda: {state_of(pid) for pid in workers} <= {"", "Z"}, "they are gone")


def test_a_stolen_port_is_left_to_the_thief() -> None:
    port = free_port()
    with socket.create_server((HOST, port)) as thief:
        stolen: int = thief.getsockname()[1]
        for program in PROGRAMS.values():
            with Server(program, ports=[stolen, port := free_port()]) as server:
                assert server.port == port
            with pytest.raises(OSError, match=f"port {stolen} is taken"):
                Server(program, ports=[stolen])


@pytest.mark.parametrize("kind", [Etcd, ZooKeeper])
def test_so_do_the_others(kind: type[Etcd | ZooKeeper]) -> None:
    with socket.create_server((HOST, stolen := free_port())):
        with kind(ports=[stolen, port := free_port()]) as server:
            assert server.port == port
        with pytest.raises(OSError, match=f"port {stolen} is taken"):
            kind(ports=[stolen])


def test_what_the_program_says_is_told_when_it_does_not_start() -> None:
    with pytest.raises(RuntimeError, match="Bad directive"):
        Server(REDIS_7, "--no-such-option", "1")


def test_nothing_is_left_of_a_stopped_server() -> None:
    with Server(VALKEY_9, "--maxclients", "77") as server:
        assert server.ask("CONFIG", "GET", "maxclients") == {b"maxclients": b"77"}
        assert server.folder.exists()
    assert is_gone(server.pid)
    assert not server.folder.exists()


def test_a_server_dies_with_who_started_it(tmp_path: Path) -> None:
    code = (
        "import os, signal; from tests.servers.server import Server; from tests.servers.programs import REDIS_7; "
        "print(Server(REDIS_7).pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    root = Path(__file__).parents[2]
    starter = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert starter.returncode == -signal.SIGKILL
    until(lambda: is_gone(int(starter.stdout)), "the server is dead too")


def test_tls_is_spoken_to_those_who_trust_the_authority(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    certificates, strange = Certificates.make(ours), Certificates.make(theirs)
    nobody = {"ssl_certfile": None, "ssl_keyfile": None}
    with Server(REDIS_7, certificates=certificates) as server:
        assert server.url == f"rediss://{HOST}:{server.port}"
        assert server.client().ping()
        assert server.client(ssl_check_hostname=True, **nobody).ping()
        with pytest.raises(redis.ConnectionError, match="certificate verify failed"):
            server.client(ssl_ca_certs=strange.certificate("authority")).ping()
        with pytest.raises(redis.ConnectionError):
            server.client(ssl=False).ping()
    with Server(REDIS_7, "--tls-auth-clients", "yes", certificates=certificates) as server:
        assert server.client().ping()
        with pytest.raises(redis.ConnectionError):
            server.client(**nobody).ping()


@pytest.mark.parametrize("program", [VALKEY_9, REDIS_6], ids=["Valkey 9", "Redis 6.2"])
def test_the_clock_of_a_server_steps_and_nothing_else_happens(program: str) -> None:
    def ahead(server: Server) -> float:
        seconds, micros = server.client().time()
        return float(seconds + micros / 1e6 - time.time())

    with ServerInItsOwnTime(program) as server:
        pid = server.pid
        server.client().set("k", "v")
        assert ahead(server) == pytest.approx(0, abs=60)
        server.step(-7_200)
        assert ahead(server) == pytest.approx(-7_200, abs=60)
        server.step(7_200 + 86_400)
        assert ahead(server) == pytest.approx(86_400, abs=60)
        assert server.client().get("k") == b"v"
        assert (server.alive, server.pid) == (True, pid)
    assert not list(Path("/dev/shm").glob(f"*faketime*_{pid}"))


class TestTheProxy:
    @pytest.fixture
    def line(self, proxy: FaultProxy) -> socket.socket:
        """A connection that has worked once."""
        line = socket.create_connection((HOST, proxy.port), timeout=10)
        assert asked(line) == PONG
        return line

    def test_counts(self, proxy: FaultProxy, line: socket.socket) -> None:
        with line:
            assert asked(line) == PONG
            assert (proxy.accepted, proxy.open) == (1, 1)
            assert proxy.bytes_asked == 2 * len(PING)
            until(lambda: proxy.bytes_answered == 2 * len(PONG), "the answer is counted")
        until(lambda: proxy.open == 0, "the proxy sees that the client is gone")
        with redis.Redis.from_url(proxy.url) as client:
            assert client.ping()
        assert proxy.accepted == 2

    @pytest.mark.parametrize(
        ("fault", "arrives"), [(FaultProxy.black_hole, False), (FaultProxy.mute, True)]
    )
    def test_swallows(
        self,
        fault: Callable[[FaultProxy], None],
        arrives: bool,
        proxy: FaultProxy,
        line: socket.socket,
        redis7: Server,
    ) -> None:
        redis7.client().delete("k")
        fault(proxy)
        with line, socket.create_connection((HOST, proxy.port), timeout=SOON) as other:
            for one in (line, other):
                one.sendall(b"INCR k\r\n")
                one.settimeout(SOON)
                with pytest.raises(TimeoutError):
                    one.recv(1)
            heard = len(PING) + 2 * len(b"INCR k\r\n")
            until(lambda: proxy.bytes_asked == heard, "the proxy has heard both")
            if arrives:
                told = len(PONG) + len(b":1\r\n:2\r\n")
                until(lambda: proxy.bytes_heard == told, "the answers are swallowed")
            assert redis7.client().get("k") == (b"2" if arrives else None)
            proxy.pass_on()
            assert asked(line) == asked(other) == PONG

    def test_delays_answers(self, proxy: FaultProxy, line: socket.socket) -> None:
        proxy.delay(0.2)
        with line:
            begin = time.monotonic()
            line.sendall(PING)
            assert line.recv(99) == PONG
            assert time.monotonic() - begin >= 0.2
            proxy.delay(60)
            line.sendall(PING)
            until(lambda: proxy.bytes_asked == 3 * len(PING), "it has been asked")
            proxy.pass_on()
            assert line.recv(99) == PONG

    def test_does_not_delay_an_answer_because_another_was_before_it(self) -> None:
        pauses: list[float | None] = []

        async def pause(seconds: float | None) -> None:
            pauses.append(seconds)

        async def delayed(waited: float) -> list[bytes]:
            return [part async for part in delaying(3).answer(PONG, waited, pause)]

        assert asyncio.run(delayed(waited=2.5)) == [PONG]
        assert pauses == [0.5]

    def test_drips(self, proxy: FaultProxy, line: socket.socket) -> None:
        proxy.drip(0.02)
        with line:
            begin = time.monotonic()
            line.sendall(PING)
            drops = [line.recv(1) for _ in PONG]
            assert b"".join(drops) == PONG
            assert time.monotonic() - begin >= 0.02 * len(PONG)

    def test_answers_junk(self, proxy: FaultProxy, line: socket.socket) -> None:
        with line:
            proxy.garbage()
            assert asked(line) == JUNK
            proxy.garbage(b":1\r\n")
            assert asked(line) == b":1\r\n"

    def test_gives_half_of_an_answer_and_the_rest_when_it_heals(
        self, proxy: FaultProxy, line: socket.socket
    ) -> None:
        proxy.half_reply()
        with line:
            assert asked(line) == PONG[:2]
            line.settimeout(SOON)
            with pytest.raises(TimeoutError):
                line.recv(1)
            proxy.pass_on()
            line.settimeout(10)
            assert line.recv(99) == PONG[2:]

    def test_cuts_what_is_open(self, proxy: FaultProxy, line: socket.socket) -> None:
        with line:
            proxy.cut()
            with pytest.raises(ConnectionResetError):
                line.recv(1)
            assert proxy.open == 0
        with socket.create_connection((HOST, proxy.port), timeout=10) as other:
            assert asked(other) == PONG

    def test_refuses_until_it_passes_on(self, proxy: FaultProxy, line: socket.socket) -> None:
        with line:
            proxy.refuse()
            with pytest.raises(ConnectionResetError):
                line.recv(1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, proxy.port))
        proxy.pass_on()
        with socket.create_connection((HOST, proxy.port), timeout=10) as other:
            assert asked(other) == PONG

    def test_hangs_up_when_the_server_does(self) -> None:
        with Server(REDIS_7) as server, FaultProxy(server.port) as proxy:
            with socket.create_connection((HOST, proxy.port), timeout=10) as line:
                assert asked(line) == PONG
                server.kill()
                assert line.recv(1) == b""
            with socket.create_connection((HOST, proxy.port), timeout=10) as line:
                assert asked(line) == b""


def asked(line: socket.socket) -> bytes:
    line.settimeout(10)
    line.sendall(PING)
    return line.recv(99)


def test_a_slot_moves_with_its_keys_and_the_old_master_says_where(cluster: Cluster) -> None:
    client = cluster.client()
    slot = cluster.slot_of_key("{a}")
    old = cluster.node_of_slot(slot)
    new = next(node for node in cluster.masters() if node is not old)
    keys = [f"{{a}}{number}" for number in range(5)]
    for key in keys:
        client.set(key, key)

    cluster.begin_move(slot, new)
    assert cluster.carry_keys(slot, 2) == 2
    assert cluster.node_of_slot(slot) is old
    with pytest.raises(AskError, match=f"{slot} {HOST}:{new.port}") as answered:
        old.ask("GET", "{a}absent")
    assert answered.type is AskError
    with pytest.raises(MovedError, match=f"{slot} {HOST}:{old.port}"):
        new.ask("GET", keys[0])
    assert [client.get(key) for key in keys] == [key.encode() for key in keys]

    cluster.finish_move(slot)
    assert cluster.node_of_slot(slot) is new
    with pytest.raises(MovedError, match=f"{slot} {HOST}:{new.port}"):
        old.ask("GET", keys[0])
    assert sorted(new.ask("KEYS", "{a}*")) == [key.encode() for key in keys]

    cluster.move_slot(slot, old)
    assert cluster.node_of_slot(slot) is old
    cluster.flush()
    assert [node.client().dbsize() for node in cluster.nodes] == [0, 0, 0]


def test_a_replica_takes_over_from_a_dead_master() -> None:
    with Cluster(replicas=True) as cluster:
        assert cluster.url == "redis+cluster://" + ",".join(
            node.url.removeprefix("redis://") for node in cluster.nodes[:3]
        )
        assert cluster.masters() == cluster.nodes[:3]
        dead = cluster.kill_master(1)
        assert dead is cluster.nodes[1]
        assert cluster.masters() == [cluster.nodes[0], cluster.nodes[4], cluster.nodes[2]]
        client = cluster.client()
        assert all(client.set(f"k{number}", "v") for number in range(50))
        dead.restart()
        # It thinks that it is a master still, until it hears from the others.
        until(lambda: dead.ask("ROLE")[0] == b"slave", "it follows who took over")
        cluster.until_whole()
        assert dead.ask("ROLE")[0] == b"slave"


def test_sentinels_promote_the_replica(sentinels: SentinelGroup) -> None:
    first, second = sentinels.servers
    assert sentinels.master is first
    first.client().set("k", "v")
    until(lambda: second.ask("GET", "k") == b"v", "it is replicated")
    assert sentinels.fail_over() is second
    assert (second.ask("ROLE")[0], first.ask("ROLE")[0]) == (b"master", b"slave")
    assert second.ask("GET", "k") == b"v"
    assert sentinels.url == "redis+sentinel://{},{},{}/limits".format(
        *(sentinel.url.removeprefix("redis://") for sentinel in sentinels.sentinels)
    )

    assert sentinels.kill_master() is second
    assert sentinels.master is first
    assert first.client().set("k", "w")
    second.restart()
    sentinels.until_whole()
    until(lambda: second.ask("GET", "k") == b"w", "it has learnt what it missed")
