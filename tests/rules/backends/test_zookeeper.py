"""Rules from a real ZooKeeper, which is killed and frozen, and whose sessions expire."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread
from threading import enumerate as enumerate_threads
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import make_digest_acl

from diana import Guard
from diana.core.errors import ConfigError, SourceError
from diana.rules import check_source
from diana.rules.backends.zookeeper import ZooKeeperSource
from tests.rules.backends.source_contract import (
    Following,
    ends_when_closed,
    follows_changes_in_order,
    heals_when_it_is_there_again,
    loaded,
    publishes_and_remembers,
    refuses_what_is_too_large,
)
from tests.rules.patience import ANSWER_SECONDS, be_patient
from tests.servers.ports import HOST, free_port
from tests.servers.proxy import FaultProxy
from tests.servers.waiting import until
from tests.servers.zookeeper import ZooKeeper

NOTICED = 12.0
"""A server that is frozen is found out within this: it takes a second, but who stands still sees it later."""


class Nodes:
    """What is in ZooKeeper, from the side."""

    def __init__(self, server: ZooKeeper) -> None:
        self.client: Any = server.client()

    def put(self, path: str, text: bytes) -> None:
        try:
            self.client.set(path, text)
        except NoNodeError:
            self.client.create(path, text, makepath=True)


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeper]:
    with ZooKeeper("jute.maxbuffer=20000000") as server:
        yield server


@pytest.fixture(scope="module")
def nodes(zookeeper: ZooKeeper) -> Nodes:
    return Nodes(zookeeper)


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    return f"/rules/{request.node.name}"


@pytest.fixture
def brisk(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an answer is waited for in vain."""
    monkeypatch.setattr("diana.rules.backends.zookeeper.ANSWER_SECONDS", 1.0)


@pytest.fixture
def steady(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one server's answer is waited for in vain, and the other's is not."""
    monkeypatch.setattr("diana.rules.backends.zookeeper.ANSWER_SECONDS", 4.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it does not matter how long a silence is."""
    monkeypatch.setattr("diana.rules.backends.zookeeper.SILENCE_SECONDS", 0.2)
    monkeypatch.setattr("diana.rules.backends.server_list.RELOAD_SECONDS", 0.1)


def opened(server: ZooKeeper, path: str, options: str = "") -> ZooKeeperSource:
    return ZooKeeperSource.from_url(server.url(path) + options)


def test_twenty_changes_come_in_order(zookeeper: ZooKeeper, nodes: Nodes, path: str) -> None:
    follows_changes_in_order(opened(zookeeper, path), lambda text: nodes.put(path, text))


def test_operators_do_not_overwrite_each_other(
    zookeeper: ZooKeeper, nodes: Nodes, path: str
) -> None:
    publishes_and_remembers(lambda: opened(zookeeper, path))
    assert nodes.client.get(f"{path}.previous")[0] == b"third"


def test_a_node_that_is_made_anew_is_another_edition(
    zookeeper: ZooKeeper, nodes: Nodes, path: str
) -> None:
    nodes.put(path, b"old")
    source = opened(zookeeper, path)
    old = source.load()
    nodes.client.delete(path)
    nodes.put(path, b"new")
    assert source.load().version != old.version
    with pytest.raises(SourceError, match="has changed since it was read"):
        source.publish(b"late", old)
    source.close()


@pytest.mark.usefixtures("impatient")
def test_a_missing_node_is_an_error_and_heals(
    zookeeper: ZooKeeper, nodes: Nodes, path: str
) -> None:
    heals_when_it_is_there_again(
        opened(zookeeper, path),
        lambda text: nodes.put(path, text),
        lambda: nodes.client.delete(path),
    )


def test_close_ends_a_watch(zookeeper: ZooKeeper, nodes: Nodes, path: str) -> None:
    nodes.put(path, b"0")
    ends_when_closed(opened(zookeeper, path))


@pytest.mark.usefixtures("impatient")
def test_too_large_is_refused(zookeeper: ZooKeeper, nodes: Nodes, path: str) -> None:
    refuses_what_is_too_large(opened(zookeeper, path), lambda text: nodes.put(path, text))
    with pytest.raises(SourceError, match="more than 1,048,576 bytes"):
        opened(zookeeper, path).publish(b"#" * 1_048_577, None)


def test_ten_megabytes_are_not_read(zookeeper: ZooKeeper, nodes: Nodes, path: str) -> None:
    nodes.put(path, b"#" * 10_000_000)
    with FaultProxy(zookeeper.port) as proxy:
        source = ZooKeeperSource.from_url(f"zookeeper://{HOST}:{proxy.port}{path}")
        with pytest.raises(SourceError, match="more than"):
            source.load()
        source.close()
        assert proxy.bytes_answered < 10_000


@pytest.mark.usefixtures("impatient")
def test_an_expired_session_is_followed_by_another(
    zookeeper: ZooKeeper, nodes: Nodes, path: str
) -> None:
    nodes.put(path, b"0")
    source = opened(zookeeper, path)
    with Following(source) as following:
        assert following.text() == b"0"
        for text in (b"1", b"2"):
            # Somebody takes over the session, and ends it: to the server, it has expired.
            identity = source._session.identity
            thief: Any = KazooClient(zookeeper.where, timeout=4, client_id=identity)
            thief.start()
            thief.stop()
            thief.close()
            nodes.put(path, text)
            assert following.text() == text
        assert following.is_well


@pytest.mark.usefixtures("brisk", "impatient")
def test_frozen_in_the_middle(zookeeper: ZooKeeper, nodes: Nodes, path: str) -> None:
    nodes.put(path, b"0")
    with Following(opened(zookeeper, path)) as following:
        assert following.text() == b"0"
        try:
            zookeeper.freeze()
            following.error_with("no session within 1 s")
        finally:
            zookeeper.thaw()
        nodes.put(path, b"1")
        assert following.text() == b"1"


@pytest.mark.usefixtures("brisk")
def test_frozen_at_the_start(zookeeper: ZooKeeper, nodes: Nodes, path: str) -> None:
    nodes.put(path, b"0")
    try:
        zookeeper.freeze()
        began = time.monotonic()
        source = opened(zookeeper, path)
        with pytest.raises(SourceError, match="no session within 1 s"):
            source.load()
        assert time.monotonic() - began < NOTICED
        source.close()
    finally:
        zookeeper.thaw()


@pytest.mark.usefixtures("steady")
def test_one_of_two_is_frozen_and_nobody_notices(
    zookeeper: ZooKeeper, nodes: Nodes, path: str
) -> None:
    nodes.put(path, b"0")
    with FaultProxy(zookeeper.port) as proxy:
        source = ZooKeeperSource.from_url(
            f"zookeeper://{HOST}:{proxy.port},{zookeeper.where}{path}"
        )
        with Following(source) as following:
            assert following.text() == b"0"
            proxy.black_hole()
            nodes.put(path, b"1")
            assert following.text() == b"1"
            nodes.put(path, b"2")
            assert following.text() == b"2"
            assert following.is_well


@pytest.mark.usefixtures("brisk", "impatient")
def test_killed_in_the_middle_and_started_again_and_full(monkeypatch: pytest.MonkeyPatch) -> None:
    with ZooKeeper() as zookeeper:
        nodes = Nodes(zookeeper)
        nodes.put("/rules", b"0")
        with Following(opened(zookeeper, "/rules")) as following:
            assert following.text() == b"0"
            zookeeper.kill()
            assert zookeeper.where in following.error()
            zookeeper.restart()
            be_patient(monkeypatch)
            operator = opened(zookeeper, "/rules")
            published = operator.publish(b"1" * 600_000, loaded(operator))
            assert following.text() == published.text

        with pytest.raises(SourceError, match=r"at most 1 MB \(jute.maxbuffer\)"):
            operator.publish(b"2" * 600_000, published)
        assert loaded(operator) == published
        operator.close()


def test_with_a_secret(zookeeper: ZooKeeper, nodes: Nodes, path: str) -> None:
    acl = [make_digest_acl("diana", "s3cr3t/word", all=True)]
    nodes.client.ensure_path(path.rpartition("/")[0])  # open to all: the secret is the node's alone
    nodes.client.create(path, b"first", acl=acl)
    source = opened(zookeeper, path, "?auth=digest:diana:s3cr3t%2Fword")
    first = source.load()
    source.publish(b"second", first)
    assert source.previous().text == b"first"
    source.close()
    # What is kept is as secret as what is in force.
    for suffix in ("", ".previous"):
        for options in ("", "?auth=digest:diana:s3cr3t"):
            stranger = opened(zookeeper, path + suffix, options)
            with pytest.raises(SourceError, match="permission denied") as refused:
                stranger.load()
            assert "s3cr3t" not in str(refused.value)
            stranger.close()


@pytest.mark.usefixtures("brisk")
@pytest.mark.parametrize("answer", [b"\x00\xff\xfe", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_nonsense_is_an_error(answer: bytes) -> None:
    with socket.create_server((HOST, 0)) as listener:

        def talk() -> None:
            line, _ = listener.accept()
            with line, suppress(OSError):  # who has heard enough hangs up
                line.recv(1 << 16)
                line.sendall(answer)

        talking = Thread(target=talk, daemon=True)
        talking.start()
        source = ZooKeeperSource.from_url(f"zookeeper://{HOST}:{listener.getsockname()[1]}/rules")
        with pytest.raises(SourceError, match="no session within 1 s"):
            source.load()
        source.close()
        talking.join(10)


WRONG = [
    ("zookeeper:///rules", "names no host"),
    ("zookeeper://host:2181", "the URL of the rules has no path"),
    ("zookeeper://host/rules", "with its port"),
    ("zookeeper://host:2181/a//b", "no path of a node"),
    ("zookeeper://host:2181/a/../b", "no path of a node"),
    ("zookeeper://host:2181/rules/", "no path of a node"),
    ("zookeeper://me:s3cr3t@host:2181/rules", "write [?]auth=digest:user:password"),
    ("zookeeper://host:2181/rules?auth=me:s3cr3t", "write [?]auth=digest:user:password"),
    ("zookeeper://host:2181/rules?auth=digest:s3cr3t", "write [?]auth=digest:user:password"),
    ("zookeeper://host:2181/rules?user=me", "no option of this URL"),
]


@pytest.mark.parametrize(("url", "said"), WRONG)
def test_a_wrong_url_says_what_to_write(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as wrong:
        check_source(url)
    assert "s3cr3t" not in str(wrong.value)


def test_a_dead_first_server_leaves_enough_of_the_start_to_the_next(
    zookeeper: ZooKeeper, nodes: Nodes, path: str
) -> None:
    nodes.put(path, b"0")
    source = ZooKeeperSource.from_url(f"zookeeper://{HOST}:{free_port()},{zookeeper.where}{path}")
    begin = time.monotonic()
    assert source.load().text == b"0"
    assert time.monotonic() - begin < ANSWER_SECONDS - 5
    source.close()


def test_a_start_that_fails_ends_its_session(zookeeper: ZooKeeper, nodes: Nodes, path: str) -> None:
    nodes.put(path, b"garbage")
    before = set(enumerate_threads())
    with pytest.raises(ConfigError, match="garbage"):
        Guard.from_file(zookeeper.url(path))
    with pytest.raises(SourceError, match="there is no node"):
        Guard.from_file(zookeeper.url(f"{path}.none"))
    until(lambda: set(enumerate_threads()) <= before, "kazoo's threads have ended")
