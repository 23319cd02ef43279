"""Rules through Sentinel, in a cluster, by TLS: the same URLs as the counters', the same promises as one server's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from diana import ConfigError, Guard
from diana.cli.main import diana
from diana.core.errors import SourceError
from diana.rules import check_source
from diana.rules.backends.redis import KeyClient, RedisSource, key_address_from_url
from tests.rules.backends.source_contract import (
    Following,
    ends_when_closed,
    follows_changes_in_order,
    heals_when_it_is_there_again,
    loaded,
)
from tests.rules.documents import document, local_file
from tests.servers.certificates import Certificates
from tests.servers.cluster import Cluster
from tests.servers.ports import HOST, free_port
from tests.servers.programs import REDIS_7
from tests.servers.sentinel import SentinelGroup
from tests.servers.server import Server
from tests.servers.waiting import until

Put = Callable[[bytes], object]


class Place:
    """A key of its own, and a way to it that is not the source's."""

    def __init__(self, url: str, ask: Callable[..., object]) -> None:
        self.key = f"rules-{uuid4()}"
        self.url = f"{url}?key={self.key}"
        self._ask = ask

    def source(self) -> RedisSource:
        return RedisSource.from_url(self.url)

    def put(self, text: bytes) -> None:
        self._ask("SET", self.key, text)
        self._ask("PUBLISH", self.key, "changed")

    def delete(self) -> None:
        self._ask("DEL", self.key)
        self._ask("PUBLISH", self.key, "changed")


def in_sentinels(group: SentinelGroup) -> Place:
    return Place(group.url, lambda *words: group.master.ask(*words))


def in_cluster(cluster: Cluster) -> Place:
    client: Any = cluster.client()
    return Place(cluster.url, client.execute_command)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server is frozen here: one that is slow to reply is on a busy machine, and not lost."""
    for name in ("REPLY_SECONDS", "ONE_OF_SEVERAL_SECONDS"):
        monkeypatch.setattr(f"diana.rules.backends.redis.{name}", 20.0)


@pytest.fixture(params=["sentinels", "cluster"])
def place(request: pytest.FixtureRequest) -> Place:
    servers = request.getfixturevalue(request.param)
    return in_sentinels(servers) if request.param == "sentinels" else in_cluster(servers)


def test_changes_come_in_order(place: Place) -> None:
    follows_changes_in_order(place.source(), place.put)


def test_two_operators(place: Place) -> None:
    # A version is made of the text, so the fourth edition, which is the second again, has the second's.
    one, other = place.source(), place.source()
    with pytest.raises(SourceError, match="there is no key"):
        one.load()
    first = one.publish(b"first", None)
    second = other.publish(b"second", first)
    with pytest.raises(SourceError, match="has changed since it was read"):
        one.publish(b"late", first)
    assert one.load() == second
    assert one.previous().text == b"first"
    one.close()
    other.close()


def test_nothing_there_is_an_error(place: Place) -> None:
    heals_when_it_is_there_again(place.source(), place.put, place.delete)


def test_a_watch_ends_when_closed(place: Place) -> None:
    place.put(b"here")
    ends_when_closed(place.source())


def test_a_guard_and_the_commands(place: Place, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"

    def run(*arguments: str) -> Result:
        result = CliRunner().invoke(diana, list(arguments))
        assert result.exit_code == 0, result.output
        return result

    for rpu in (3, 4):
        rules.write_bytes(document(rpu))
        run("push", "--yes", str(rules), place.url)
    assert run("pull", place.url).output.encode() == document(4)
    guard = Guard.from_file(local_file(tmp_path, place.url, rpu=9))
    until(lambda: guard.policy.rules[0].rpu == 4, "the remote rules win")
    run("rollback", "--yes", place.url)
    until(lambda: guard.policy.rules[0].rpu == 3, "the rollback is followed")
    assert guard.problems == ()
    guard.close()


def test_a_fail_over_is_followed() -> None:
    with SentinelGroup() as group:
        place = in_sentinels(group)
        place.put(b"before")
        with Following(place.source()) as following:
            assert following.text() == b"before"
            group.fail_over()
            place.put(b"after")
            following.until(b"after")
            group.kill_master()
            place.put(b"later")
            following.until(b"later")
            operator = place.source()
            edition = operator.publish(b"published", operator.load())
            following.until(edition.text)
            operator.close()


def test_a_former_master_that_lives_on_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fail-over closes its connections as a rule; a source that found it again would never hear of a change."""
    monkeypatch.setattr("diana.rules.backends.redis.POLL_SECONDS", 3_600)
    with SentinelGroup() as group:
        place = in_sentinels(group)
        place.put(b"before")
        source, client = place.source(), KeyClient(key_address_from_url(place.url).address)
        edition = source.load()
        assert client.connected().ping()
        assert not client.is_at_former_master()
        group.fail_over()
        assert client.is_at_former_master()
        client.disconnect()
        assert client.connected().ping()
        assert not client.is_at_former_master()
        client.close()
        with pytest.raises(SourceError):  # by the check, or because the connection was closed
            for _ in source.watch(edition):
                pass
        place.put(b"after")
        assert loaded(source).text == b"after"
        source.close()


def test_dead_sentinels_are_passed_over(sentinels: SentinelGroup) -> None:
    place = in_sentinels(sentinels)
    place.put(b"here")
    dead = f"{HOST}:{free_port()},{HOST}:{free_port()},"
    source = RedisSource.from_url(place.url.replace("://", f"://{dead}"))
    assert source.load().text == b"here"
    source.close()


def test_an_unknown_service_is_named(sentinels: SentinelGroup) -> None:
    source = RedisSource.from_url(sentinels.url.replace("/limits", "/nowhere"))
    with pytest.raises(SourceError, match=r"no sentinel of .* names a master for 'nowhere'"):
        source.load()
    source.close()


def test_a_slot_that_moves_is_followed() -> None:
    with Cluster() as cluster:
        place = in_cluster(cluster)
        place.put(b"before")
        slot = cluster.slot_of_key(place.key)
        with Following(place.source()) as following:
            assert following.text() == b"before"
            for number in range(3):
                home = cluster.node_of_slot(slot)
                to = next(node for node in cluster.masters() if node is not home)
                cluster.begin_move(slot, to)
                cluster.carry_keys(slot)  # the old node answers ASK now
                place.put(b"asking %d" % number)
                following.until(b"asking %d" % number)
                cluster.finish_move(slot)
                place.put(b"moved %d" % number)
                following.until(b"moved %d" % number)
            operator = place.source()
            following.until(operator.publish(b"published", operator.load()).text)
            operator.close()


def test_a_replica_that_takes_over_is_followed() -> None:
    with Cluster(replicas=True) as cluster:
        place = in_cluster(cluster)
        place.put(b"before")
        shares = [cluster.node_of_slot(slots) for slots in (0, 6_000, 12_000)]
        index = shares.index(cluster.node_of_slot(cluster.slot_of_key(place.key)))
        with Following(place.source()) as following:
            assert following.text() == b"before"
            cluster.kill_master(index)
            place.put(b"after")
            following.until(b"after")


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    certificates = Certificates.make(tmp_path_factory.mktemp("certificates"))
    with Server(REDIS_7, certificates=certificates) as server:
        yield server


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_by_tls(secure: Server, scheme: str) -> None:
    assert secure.certificates is not None
    trusted = f"ssl_ca_certs={secure.certificates.certificate('authority')}"
    url = f"{scheme}://{HOST}:{secure.port}"
    secure.ask("DEL", "shop", "{shop}.previous")
    source = RedisSource.from_url(f"{url}?key=shop&{trusted}")
    assert source.publish(b"here", None).text == b"here"
    source.close()
    mistrusting = RedisSource.from_url(f"{url}?key=shop")
    with pytest.raises(SourceError, match="certificate"):
        mistrusting.load()
    mistrusting.close()


@pytest.mark.parametrize("family", ["redis", "rediss", "valkey", "valkeys"])
@pytest.mark.parametrize("rest", ["://h", "+sentinel://h,i:26380/limits", "+cluster://h,i:7001"])
def test_rules_are_written_as_counters_are(family: str, rest: str) -> None:
    check_source(f"{family}{rest}?key=shop:rules")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel://h:26379", "which master"),
        ("redis+cluster://h:7000/3", "database 0 only"),
        ("redis+sentinel://h/limits?ssl_keyfile=x", "needs TLS"),
        ("redis://h:1,i:2", r"redis\+cluster:// or redis\+sentinel://"),
        (
            "redis://h?namespace=shop",
            "'namespace' is no option of the rules' URL; there is key, db",
        ),
        ("redis://h:port", "a port of the rules is no number"),
    ],
)
def test_a_wrong_url_says_what_to_write(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_source(url)
