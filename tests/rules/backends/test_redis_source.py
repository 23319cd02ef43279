"""Rules in Redis or Valkey: announced or not, lost and found again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
import redis

from diana import ConfigError, Guard
from diana.core.errors import SourceError
from diana.rules import open_source
from diana.rules.backends.redis import RedisSource
from tests.rules.documents import document, local_file
from tests.servers.ports import free_port
from tests.servers.programs import PROGRAMS, REDIS_7
from tests.servers.proxy import FaultProxy
from tests.servers.server import Server
from tests.servers.waiting import until

KEY = "diana:rules"


class Watched:
    """What a watch gives, as it comes, and the error that ends it."""

    def __init__(self, url: str) -> None:
        self.source = RedisSource.from_url(url)
        self.seen: list[bytes] = []
        self.error: SourceError | None = None
        self._thread = Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        try:
            for edition in self.source.watch(self.source.load()):
                self.seen.append(edition.text)
        except SourceError as error:
            self.error = error

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.source.close()
        self._thread.join(30)
        assert self.over


@pytest.fixture(scope="module", params=PROGRAMS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(PROGRAMS[request.param]) as server:
        yield server


@pytest.fixture
def url(server: Server) -> str:
    until(lambda: not listeners(server), "nobody of an earlier test listens")
    server.ask("FLUSHALL")
    server.ask("SET", KEY, document(1))
    return server.url


def listeners(server: Server) -> int:
    return int(server.ask("PUBSUB", "NUMSUB", KEY)[1])


def test_publishing_announces(url: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diana.rules.backends.redis.POLL_SECONDS", 3_600)
    editor = open_source(url)
    assert isinstance(editor, RedisSource)
    with Watched(url) as watched:
        until(lambda: listeners(server), "it listens")
        edition = editor.load()
        for rpu in range(2, 12):
            edition = editor.publish(document(rpu), edition)
            until(lambda: watched.seen[-1:] == [edition.text], "it is seen")  # noqa: B023
        assert watched.seen == [document(rpu) for rpu in range(2, 12)]
    until(lambda: not listeners(server), "it listens no longer")
    editor.close()


def test_a_key_set_by_hand_is_seen_too(
    url: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diana.rules.backends.redis.POLL_SECONDS", 0.5)
    with Watched(url) as watched:
        until(lambda: listeners(server), "it listens")
        server.ask("SET", KEY, document(2))
        until(lambda: watched.seen == [document(2)], "it is seen")


def test_what_changed_between_reading_and_listening_is_seen(url: str, server: Server) -> None:
    source = RedisSource.from_url(url)
    known = source.load()
    server.ask("SET", KEY, document(2))
    assert next(source.watch(known)).text == document(2)
    source.close()


def test_whoever_has_not_seen_what_is_there_overwrites_nothing(url: str, server: Server) -> None:
    mine, yours = RedisSource.from_url(url), RedisSource.from_url(url)
    seen = mine.load()
    yours.publish(document(2), yours.load())
    for stale in (seen, None):
        with pytest.raises(SourceError, match="has changed since it was read"):
            mine.publish(document(3), stale)
    assert mine.previous().text == document(1)
    mine.publish(document(1), mine.load())
    assert mine.previous().text == document(2), "what was replaced last"
    server.ask("DEL", KEY)
    with pytest.raises(SourceError, match="has changed since it was read"):
        mine.publish(document(3), seen)
    assert mine.publish(document(3), None).text == document(3)
    mine.close()
    yours.close()


def test_another_key_and_no_key(url: str, server: Server) -> None:
    server.ask("SET", "shop/rules", document(7))
    there = RedisSource.from_url(f"{url}/0?key=shop/rules")
    assert there.load().text == document(7)
    nowhere = RedisSource.from_url(f"{url}?key=nowhere")
    for ask in (nowhere.load, nowhere.previous):
        with pytest.raises(SourceError, match="there is no key"):
            ask()
    there.close()
    nowhere.close()


def test_what_is_no_document_is_an_error(url: str, server: Server) -> None:
    source = RedisSource.from_url(url)
    server.ask("SET", KEY, b"#" * 10_000_000)
    with pytest.raises(SourceError, match="more than 1,048,576 bytes"):
        source.load()
    server.ask("DEL", KEY)
    server.ask("RPUSH", KEY, "a list")
    with pytest.raises(SourceError, match="WRONGTYPE"):
        source.load()
    source.close()


def test_a_line_that_is_cut_is_an_error_at_once(url: str, server: Server) -> None:
    with Watched(url) as watched:
        until(lambda: listeners(server), "it listens")
        server.ask("CLIENT", "KILL", "TYPE", "pubsub")
        until(lambda: watched.over, "the loss is seen")
        assert watched.error is not None


@pytest.mark.parametrize("fault", [FaultProxy.black_hole, FaultProxy.mute, FaultProxy.garbage])
def test_a_line_that_is_dead_is_found_out(
    redis7: Server, proxy: FaultProxy, fault: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diana.rules.backends.redis.POLL_SECONDS", 3_600)
    redis7.ask("SET", KEY, document(1))
    with Watched(proxy.url) as watched:
        until(lambda: listeners(redis7), "it listens")
        fault(proxy)  # type: ignore[operator]
        until(lambda: watched.over, "the loss is found out")
        assert watched.error is not None


def test_a_frozen_server_is_an_error_soon_and_a_killed_one_at_once() -> None:
    with Server(REDIS_7) as server:
        source = RedisSource.from_url(server.url)
        server.freeze()
        with pytest.raises(SourceError, match=r"[Tt]imeout"):
            source.load()
        server.thaw()
        server.ask("SET", KEY, document(1))
        assert source.load().text == document(1)
        server.kill()
        with pytest.raises(SourceError, match="the rules in Redis"):
            source.load()
        server.restart()
        with pytest.raises(SourceError, match="there is no key"):
            source.load()
        source.close()


def test_a_watch_in_a_frozen_server_can_be_closed() -> None:
    with Server(REDIS_7) as server:
        server.ask("SET", KEY, document(1))
        with Watched(server.url):
            until(lambda: listeners(server), "it listens")
            server.freeze()
        server.thaw()


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@host:port/0",
        "redis://:hun/hunter2@host/0",
        "redis://:a@hunter2.example/1@127.0.0.1:1",
        "redis://:a?hunter2@127.0.0.1:1",
        "redis://:a#hunter2@127.0.0.1:1",
        "redis://:hunter2@host/hunter",
        "redis://:hunter2@host?ssl_ca_certs=/hunter",
        "rediss://:hunter2@host?ssl_cert_reqs=perhaps",
        "redis://:hunter2@host?key=a&key=b",
        "redis://:hunter2@host?key=",
        "redis://:hunter2@host?nonsense",
        "redis://:hunter2@host?timeout=5",
        "redis://:hunter2@host?ssl_cert_reqs=perhaps&db=x",
    ],
)
def test_a_wrong_url_is_told_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_source(url)
    assert "hun" not in str(caught.value)


def test_errors_do_not_show_the_password_either(redis7: Server) -> None:
    for url in (
        f"redis://:hunter2@127.0.0.1:{free_port()}",
        f"redis://me:hunter2@127.0.0.1:{redis7.port}",
    ):
        source = RedisSource.from_url(url)
        with pytest.raises(SourceError) as caught:
            source.load()
        assert "hunter2" not in str(caught.value)
        source.close()


@pytest.mark.parametrize("scheme", ["valkey", "VALKEY", "redis"])
def test_other_spellings_of_the_scheme(redis7: Server, scheme: str) -> None:
    redis7.ask("SET", KEY, document(1))
    source = open_source(redis7.url.replace("redis", scheme, 1))
    assert source.load().text == document(1)
    source.close()


def test_by_a_socket(redis7: Server) -> None:
    redis7.ask("SET", KEY, document(1))
    source = open_source(redis7.unix_url)
    assert source.load().text == document(1)
    source.close()


def test_who_may_not_listen_looks_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diana.rules.backends.redis.POLL_UNSUBSCRIBED_SECONDS", 0.1)
    caplog.set_level(logging.WARNING, "diana")
    with Server(REDIS_7) as server:
        server.ask("SET", KEY, document(1))
        rights = ("~*", "resetchannels", "+get", "+strlen", "+hello", "+client", "+select")
        server.ask("ACL", "SETUSER", "reader", "on", ">hunter2", *rights)
        url = f"redis://reader:hunter2@127.0.0.1:{server.port}"
        guard = Guard.from_file(local_file(tmp_path, url, rpu=9))
        for rpu in (2, 3, 4):
            server.ask("SET", KEY, document(rpu))
            until(lambda: guard.policy.rules[0].rpu == rpu, "it is seen")  # noqa: B023
        server.ask("CLIENT", "KILL", "USER", "reader")
        server.ask("SET", KEY, document(5))
        until(lambda: guard.policy.rules[0].rpu == 5, "it is seen by a new line, too")
        told = [record.getMessage() for record in caplog.records]
        assert len([one for one in told if "SUBSCRIBE" in one]) == 1
        assert "hunter2" not in caplog.text
        guard.close()


def test_a_source_that_is_closed_while_a_watch_begins_ends_it_silently(
    redis7: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis7.ask("SET", KEY, document(1))
    source = RedisSource.from_url(redis7.url)
    known = source.load()

    def close_under_it() -> None:
        source.close()
        raise redis.ConnectionError("closed")

    monkeypatch.setattr(source, "_subscribed", close_under_it)
    assert list(source.watch(known)) == []
