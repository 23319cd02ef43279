"""Rules from a real etcd, which is killed, frozen, compacted, and made to talk nonsense."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest

from diana.core.contracts import Revision
from diana.core.errors import ConfigError, SourceError
from diana.rules import check_source
from diana.rules.backends.etcd import EtcdSource
from tests.rules.backends.source_contract import (
    Following,
    ends_when_closed,
    follows_changes_in_order,
    heals_when_it_is_there_again,
    publishes_and_remembers,
    refuses_what_is_too_large,
)
from tests.servers.certificates import Certificates
from tests.servers.etcd import Etcd, EtcdCluster
from tests.servers.ports import HOST
from tests.servers.proxy import FaultProxy
from tests.servers.waiting import until

NOTICED = 12.0
"""A server that is frozen is found out within this: it takes a second, but who stands still sees it later."""


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with Etcd("--max-request-bytes", "20000000") as server:
        yield server


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"/{request.node.name}"


@pytest.fixture
def brisk(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an answer is waited for in vain."""
    monkeypatch.setattr("diana.rules.backends.http_client.ANSWER_SECONDS", 1.0)


@pytest.fixture
def steady(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one server's answer is waited for in vain, and the other's is not."""
    monkeypatch.setattr("diana.rules.backends.http_client.ANSWER_SECONDS", 4.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it does not matter how long a silence is."""
    monkeypatch.setattr("diana.rules.backends.etcd.SILENCE_SECONDS", 0.2)
    monkeypatch.setattr("diana.rules.backends.server_list.RELOAD_SECONDS", 0.1)


def opened(server: Etcd, key: str, user: str = "") -> EtcdSource:
    return EtcdSource.from_url(server.url(key, user))


def test_twenty_changes_come_in_order(etcd: Etcd, key: str) -> None:
    follows_changes_in_order(opened(etcd, key), lambda text: etcd.put(key, text))


def test_every_change_comes_even_those_while_nobody_looked(etcd: Etcd, key: str) -> None:
    etcd.put(key, b"0")
    source = opened(etcd, key)
    known = source.load()
    for number in range(1, 21):
        etcd.put(key, b"%d" % number)
    watch = source.watch(known)
    assert [next(watch).text for _ in range(20)] == [b"%d" % number for number in range(1, 21)]


def test_operators_do_not_overwrite_each_other(etcd: Etcd, key: str) -> None:
    publishes_and_remembers(lambda: opened(etcd, key))
    assert etcd.get(f"{key}.previous") == b"third"


def test_the_version_is_the_revision(etcd: Etcd, key: str) -> None:
    assert opened(etcd, key).publish(b"x", None).version == str(etcd.put(key, b"y") - 1)


@pytest.mark.usefixtures("impatient")
def test_a_missing_key_is_an_error_and_heals(etcd: Etcd, key: str) -> None:
    heals_when_it_is_there_again(
        opened(etcd, key), lambda text: etcd.put(key, text), lambda: etcd.delete(key)
    )


def test_an_empty_document_is_a_document(etcd: Etcd, key: str) -> None:
    etcd.put(key, b"")
    assert opened(etcd, key).load().text == b""


def test_close_ends_a_watch(etcd: Etcd, key: str) -> None:
    etcd.put(key, b"0")
    ends_when_closed(opened(etcd, key))


@pytest.mark.usefixtures("impatient")
def test_too_large_is_refused(etcd: Etcd, key: str) -> None:
    refuses_what_is_too_large(opened(etcd, key), lambda text: etcd.put(key, text))
    with pytest.raises(SourceError, match="more than 1,048,576 bytes"):
        opened(etcd, key).publish(b"#" * 1_048_577, None)


def test_ten_megabytes_are_not_read(etcd: Etcd, key: str) -> None:
    etcd.put(key, b"#" * 10_000_000)
    with FaultProxy(etcd.port) as proxy:
        with pytest.raises(SourceError, match="more than"):
            EtcdSource.from_url(f"etcd://{HOST}:{proxy.port}{key}").load()
        assert proxy.bytes_answered < 10_000_000


@pytest.mark.usefixtures("impatient")
def test_what_was_compacted_is_loaded(etcd: Etcd, key: str) -> None:
    etcd.put(key, b"0")
    source = opened(etcd, key)
    known = source.load()
    for text in (b"1", b"2", b"3"):
        latest = etcd.put(key, text)
    etcd.compact(latest)
    watch = source.watch(known)
    assert next(watch).text == b"3"
    etcd.put(key, b"4")
    assert next(watch).text == b"4"


@pytest.mark.usefixtures("impatient")
def test_killed_in_the_middle_and_started_again() -> None:
    with Etcd() as etcd:
        etcd.put("/rules", b"0")
        with Following(opened(etcd, "/rules")) as following:
            assert following.text() == b"0"
            etcd.kill()
            following.error_with("refused")
            etcd.restart()
            etcd.put("/rules", b"1")
            assert following.text() == b"1"


@pytest.mark.usefixtures("brisk", "impatient")
def test_frozen_in_the_middle(etcd: Etcd, key: str) -> None:
    etcd.put(key, b"0")
    with Following(opened(etcd, key)) as following:
        assert following.text() == b"0"
        try:
            etcd.freeze()
            assert "no answer within 1 s" in following.error()
        finally:
            etcd.thaw()
        etcd.put(key, b"1")
        assert following.text() == b"1"


@pytest.mark.usefixtures("brisk")
def test_frozen_at_the_start(etcd: Etcd, key: str) -> None:
    etcd.put(key, b"0")
    try:
        etcd.freeze()
        began = time.monotonic()
        with pytest.raises(SourceError, match="no answer within 1 s"):
            opened(etcd, key).load()
        assert time.monotonic() - began < NOTICED
    finally:
        etcd.thaw()


def test_dead_at_the_start() -> None:
    with Etcd() as etcd:
        etcd.kill()
        with pytest.raises(SourceError, match=f"^{etcd.where}: Connection refused$"):
            opened(etcd, "/rules").load()


@pytest.mark.usefixtures("steady")
def test_one_of_three_is_frozen_and_nobody_notices() -> None:
    with EtcdCluster() as cluster:
        first, second, _ = cluster.nodes
        second.put("/rules", b"0")
        with Following(EtcdSource.from_url(cluster.url("/rules"))) as following:
            assert following.text() == b"0"
            first.freeze()
            second.put("/rules", b"1")
            assert following.text() == b"1"
            first.thaw()
            second.kill()
            first.put("/rules", b"2")
            assert following.text() == b"2"
            assert following.is_well


@pytest.mark.usefixtures("steady", "impatient")
@pytest.mark.parametrize("fault", ["black_hole", "half_reply", "garbage", "cut"])
def test_a_bad_network_before_one_of_two(etcd: Etcd, key: str, fault: str) -> None:
    etcd.put(key, b"0")
    with FaultProxy(etcd.port) as proxy:
        source = EtcdSource.from_url(f"etcd://{HOST}:{proxy.port},{etcd.where}{key}")
        with Following(source) as following:
            assert following.text() == b"0"
            getattr(proxy, fault)()
            etcd.put(key, b"1")
            assert following.text() == b"1"
            assert following.is_well


@pytest.mark.usefixtures("brisk")
def test_an_answer_in_drops_is_not_waited_for(etcd: Etcd, key: str) -> None:
    etcd.put(key, b"0")
    with FaultProxy(etcd.port) as proxy:
        proxy.drip(0.05)
        began = time.monotonic()
        with pytest.raises(SourceError, match="no answer within 1 s"):
            EtcdSource.from_url(f"etcd://{HOST}:{proxy.port}{key}").load()
        assert time.monotonic() - began < NOTICED
        proxy.pass_on()


@pytest.mark.usefixtures("impatient")
def test_etcd_that_starts_again_from_nothing_is_followed() -> None:
    with Etcd() as etcd:
        for _ in range(5):
            etcd.put("/rules", b"old")
        port = etcd.port
        source = opened(etcd, "/rules")
        with Following(source) as following:
            assert following.text() == b"old"
            etcd.stop()
            with Etcd(ports=[port]) as new:
                assert new.put("/rules", b"new") < 6
                assert following.text() == b"new"
                new.put("/rules", b"newer")
                assert following.text() == b"newer"


def test_with_a_password() -> None:
    with Etcd("--bcrypt-cost", "4") as etcd:
        etcd.put("/rules", b"0")
        etcd.require_passwords("diana", "s3cr3t/word")
        user = "diana:s3cr3t%2Fword@"
        with Following(opened(etcd, "/rules", user)) as following:
            assert following.text() == b"0"
            etcd.put("/rules", b"1")
            assert following.text() == b"1"
            assert following.is_well
        for wrong in ("", "diana:s3cr3t@"):
            with pytest.raises(SourceError) as refused:
                opened(etcd, "/rules", wrong).load()
            assert "etcdserver" in str(refused.value)
            assert "s3cr3t" not in str(refused.value)

        # A node needs to read its key, and nothing else.
        etcd.allow_to_read("node", "s3cr3t", "/rules")
        node = opened(etcd, "/rules", "node:s3cr3t@")
        with Following(node) as following:
            assert following.text() == b"1"
            etcd.put("/rules", b"2")
            assert following.text() == b"2"
            assert following.is_well
        with pytest.raises(SourceError, match="permission denied"):
            node.publish(b"mine", node.load())

        # What a member gave out before it was started again is worth nothing.
        source, other = opened(etcd, "/rules", user), opened(etcd, "/rules", user)
        known = source.load()
        etcd.restart()
        published = other.publish(b"published", other.load())
        assert next(source.watch(known)) == published
        assert other.load() == published


@pytest.mark.usefixtures("impatient")
def test_a_token_that_expires_is_asked_for_again(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef0123456789abcdef")
    # One that is new is still good when etcd, or who asked for it, has stood still for two seconds.
    with Etcd("--auth-token", f"jwt,priv-key={secret},sign-method=HS256,ttl=4s") as etcd:
        etcd.put("/rules", b"0")
        etcd.require_passwords("diana", "s3cr3t")
        source = opened(etcd, "/rules", "diana:s3cr3t@")
        assert source.load().text == b"0"
        token = source._token
        with Following(source) as following:
            assert following.text() == b"0"
            until(lambda: source._token != token, "another token is there")
            other = opened(etcd, "/rules", "diana:s3cr3t@")
            other.publish(b"1", other.load())
            assert following.text() == b"1"
            assert following.is_well


def test_over_tls(tmp_path: Path) -> None:
    certificates = Certificates.make(tmp_path)
    with Etcd(certificates=certificates) as etcd:
        etcd.put("/rules", b"0")
        with Following(opened(etcd, "/rules")) as following:
            assert following.text() == b"0"
            etcd.put("/rules", b"1")
            assert following.text() == b"1"
            assert following.is_well
        with pytest.raises(SourceError, match=r"(?i)certificate"):
            EtcdSource.from_url(f"etcds://{etcd.where}/rules").load()


NONSENSE = [
    b"",
    b"\x00\xff\xfe",
    b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    b"HTTP/1.1 OK\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\n<html>",
    b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 100_000,
    b"HTTP/1.0 200 OK\r\n\r\n[]",
    b'HTTP/1.0 200 OK\r\n\r\n{"kvs": 5}',
    b'HTTP/1.0 200 OK\r\n\r\n{"kvs": [5]}',
    b'HTTP/1.0 200 OK\r\n\r\n{"kvs": [{}]}',
    b'HTTP/1.0 200 OK\r\n\r\n{"kvs": [{"value": 5, "mod_revision": "5"}]}',
    b'HTTP/1.0 200 OK\r\n\r\n{"kvs": [{"value": "%%%%", "mod_revision": "5"}]}',
    b'HTTP/1.0 200 OK\r\n\r\n{"kvs": [{"value": "eA==", "mod_revision": "-5"}]}',
    b"HTTP/1.0 502 Bad Gateway\r\n\r\n<html>",
    b"HTTP/1.0 404 Not Found\r\n\r\n<html>",
    b"HTTP/1.0 302 Found\r\nLocation: http://elsewhere/\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nX: " + b"x" * 200_000,
]


@contextmanager
def talking(answers: Iterator[bytes]) -> Iterator[str]:
    """A server that gives one answer for each connection, whatever the request is; its host and port."""
    with socket.create_server((HOST, 0)) as listener:

        def talk() -> None:
            for answer in answers:
                line, _ = listener.accept()
                with (
                    line,
                    suppress(OSError),
                ):  # the client has read enough and closes the connection
                    line.recv(1 << 16)
                    line.sendall(answer)

        thread = Thread(target=talk, daemon=True)
        thread.start()
        yield f"{HOST}:{listener.getsockname()[1]}"
        thread.join(10)


@pytest.mark.parametrize("answer", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_is_an_error(answer: bytes) -> None:
    with talking(iter([answer])) as where:
        source = EtcdSource.from_url(f"etcd://{where}/rules")
        with pytest.raises(SourceError):
            source.load()


@pytest.mark.parametrize("answer", NONSENSE, ids=range(len(NONSENSE)))
def test_the_next_server_is_read_if_one_answers_nonsense(etcd: Etcd, answer: bytes) -> None:
    etcd.put("/after-nonsense", b"good")
    with talking(iter([answer])) as where:
        source = EtcdSource.from_url(f"etcd://{where},{etcd.where}/after-nonsense")
        assert source.load().text == b"good"


def test_nonsense_names_the_server() -> None:
    bad = b'HTTP/1.0 200 OK\r\n\r\n{"kvs": [{"value": "%%%%", "mod_revision": "5"}]}'
    with talking(iter([bad])) as where:
        source = EtcdSource.from_url(f"etcd://{where}/rules")
        with pytest.raises(SourceError, match=f"{where}: unexpected reply"):
            source.load()


def test_a_change_that_is_not_newer_ends_the_watch() -> None:
    event = b'{"result": {"events": [{"kv": {"value": "eA==", "mod_revision": "6"}}]}}\n'
    stream = b"HTTP/1.0 200 OK\r\n\r\n" + event * 100
    with talking(iter([stream])) as where:
        source = EtcdSource.from_url(f"etcd://{where}/rules")
        watch = source.watch(Revision(b"", "5"))
        assert next(watch) == Revision(b"x", "6")
        with pytest.raises(SourceError):
            next(watch)


WRONG = [
    ("etcd:///rules", "names no host"),
    ("etcd://host:2379", "the URL of the rules has no path"),
    ("etcd://host:2379/", "the URL of the rules has no path"),
    ("etcd://host/rules", "with its port"),
    ("etcd://host:2379,other/rules", "with its port"),
    ("etcd://host:0/rules", "no number from 1 to 65535"),
    ("etcd://host:2379/rules?ca=x", "write etcds://"),
    ("etcds://host:2379/rules?cert=x", "belong together"),
    ("etcds://host:2379/rules?verify=no", "no option of this URL"),
    ("etcds://host:2379/rules?ca=", "write ca once"),
    ("etcd://me:s3cr3t/@host:2379/rules", "unescaped character"),
    ("etcd://:s3cr3t@host:2379/rules", "a password without a user"),
    ("etcd://me:s3cr3t@[host:2379/rules", "cannot be read"),
    ("etcd://me:s3cr3t@ho st:2379/rules", "a space in it"),
]


@pytest.mark.parametrize(("url", "said"), WRONG)
def test_a_wrong_url_says_what_to_write(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as wrong:
        check_source(url)
    assert "s3cr3t" not in str(wrong.value)


def test_certificates_that_are_not_there() -> None:
    with pytest.raises(ConfigError, match=r"ca=/nowhere\.pem: cannot be read: No such file"):
        EtcdSource.from_url("etcds://host:2379/rules?ca=/nowhere.pem")


def test_ipv6_is_written_in_brackets() -> None:
    check_source("etcd://[::1]:2379,[::2]:2379/rules")
