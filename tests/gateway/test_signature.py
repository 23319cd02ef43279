"""`signature`: only requests that were signed with a shared secret, once, and just now."""

from __future__ import annotations

import hmac
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from diana.core.client_address import Proxies
from diana.gateway.filters.signature import Signature, signature_lines
from diana.gateway.filters.used_signatures import ProcessReplays
from diana.gateway.proxy import Proxy
from diana.gateway.upstream import upstream_from_url
from diana.testing import FakeClock
from tests.gateway.upstreams import (
    HELLO,
    OPEN,
    Behave,
    Upstream,
    ask,
    connected,
    gateway_to,
    get,
    listening,
    read_exactly,
    read_head,
    says,
    status_of,
    to_the_end,
    upstream,
)

SECRET = b"correct horse battery staple"
NOW = 1_700_000_000_250_000
WINDOW = 300_000_000


GREETS = says(HELLO)


@contextmanager
def signed_service(
    behave: Behave = GREETS, most: int = 1_000
) -> Iterator[tuple[int, Upstream, FakeClock]]:
    clock = FakeClock(NOW)
    with upstream(behave) as service:
        proxy = Proxy(upstream_from_url(service.url), Proxies())
        app = Signature(proxy, {b"app": SECRET}, WINDOW, clock=clock, replays=ProcessReplays(most))
        with listening(app) as port:
            yield port, service, clock


def lines(
    target: str = "/", *, method: str = "GET", at: int = NOW, **other: str | bytes
) -> list[str]:
    """The lines of a request that is signed well; `other` replaces some of them."""
    body = other.pop("body", b"")
    assert isinstance(body, bytes)
    said = signature_lines("app", SECRET, method, target, at, body)
    said |= {name.replace("_", "-"): str(value) for name, value in other.items()}
    return [f"{name}: {value}" for name, value in said.items()]


def test_a_signed_request_passes_once() -> None:
    with signed_service() as (port, service, clock):
        request = get("/orders?sku_id=%37", *lines("/orders?sku_id=%37"))
        assert status_of(ask(port, request)) == 200
        again = ask(port, request)
        assert status_of(again) == 401
        assert b"here before" in again
        assert b"www-authenticate: Diana-HMAC-SHA256" in again
        clock.advance(299)
        assert status_of(ask(port, request)) == 401
        clock.advance(2)
        assert b"too long ago" in ask(port, request)
        assert len(service.heads) == 1


@pytest.mark.parametrize(
    "request_lines",
    [
        [],
        lines(X_Signature="0" * 64),
        lines(X_Signature=""),
        lines(X_Signature="\u00e4"),
        lines(X_Signature_Key="nobody"),
        lines(X_Signature_Time="1700000000.250001"),
        lines(X_Signature_Time="1e9"),
        lines(X_Signature_Time="-1"),
        lines(X_Signature_Time="9" * 400),
        lines("/other"),
        lines("/?"),
        lines(method="POST"),
        lines(at=NOW - WINDOW - 1),
        lines(at=NOW + WINDOW + 1),
        [*lines(), "X-Signature-Key: app"],
        [*lines(), "Content-Digest: sha-256=:AAAA:"],
    ],
)
def test_what_is_not_signed_well_never_reaches_the_upstream(request_lines: list[str]) -> None:
    with signed_service() as (port, service, _):
        assert status_of(ask(port, get("/", *request_lines))) == 401
        assert service.heads == []


@pytest.mark.parametrize("at", [NOW - WINDOW, NOW + WINDOW])
def test_the_window_reaches_both_ways(at: int) -> None:
    with signed_service() as (port, _, __):
        request = get("/", *lines(at=at))
        assert [status_of(ask(port, request)) for _ in range(2)] == [200, 401]


def test_a_body_needs_its_digest() -> None:
    with signed_service() as (port, service, _):
        bare = get("/", *lines(method="POST"), "Content-Length: 5", method="POST") + b"hello"
        assert status_of(ask(port, bare)) == 401
        assert service.heads == []


@pytest.mark.parametrize("framing", ["Content-Length: 5", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("sent", [b"hello", b"hellO"])
def test_another_body_than_the_signed_one_never_arrives_whole(framing: str, sent: bytes) -> None:
    got: list[bytes] = []

    def behave(connection: socket.socket, head: bytes) -> None:
        if b"chunked" not in head:
            got.append(read_exactly(connection, 5))
        else:
            while not b"".join(got).endswith(b"0\r\n\r\n"):
                got.append(read_exactly(connection, 1))
        connection.sendall(HELLO)

    with signed_service(behave) as (port, _, __):
        said = lines(method="POST", body=b"hello")
        with connected(port) as client:
            client.sendall(get("/", *said, framing, "Connection: close", method="POST"))
            chunked = "chunked" in framing
            client.sendall(b"5\r\n" + sent + b"\r\n0\r\n\r\n" if chunked else sent)
            head = read_head(client)
            answer = to_the_end(client)
        if sent == b"hello":
            assert status_of(head) == 200
        else:
            assert status_of(head) == 400
            assert b"not the one whose digest was signed" in answer
            assert sent not in b"".join(got)


def test_what_is_remembered_is_bounded_and_forgotten_when_it_is_too_old_anyway() -> None:
    with signed_service(most=3) as (port, _, clock):
        requests = [get("/", *lines(at=NOW + number)) for number in range(5)]
        assert [status_of(ask(port, each)) for each in requests] == [200, 200, 200, 503, 503]
        assert status_of(ask(port, requests[0])) == 401  # still known
        clock.advance(301)
        assert status_of(ask(port, get("/", *lines(at=clock())))) == 200


@pytest.mark.parametrize("where", ["env", "file"])
def test_in_a_rules_file(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APP_KEY", SECRET.decode())
    (tmp_path / "key").write_bytes(SECRET + b"\n")
    place = "env APP_KEY" if where == "env" else f"file {tmp_path / 'key'}"
    rules = f"filters: [signature: {{keys: {{app: {place}}}, window: 1m}}]\n{OPEN}"
    with upstream(says(HELLO)) as service, gateway_to(service.url, rules) as port:
        assert status_of(ask(port, get("/"))) == 401
        assert status_of(ask(port, get("/", *lines(at=time.time_ns() // 1_000)))) == 200


@pytest.mark.parametrize("length", [[], ["Content-Length: 0"], ["Content-Length: 00"]])
def test_a_body_that_was_left_out_is_told_and_the_signature_stays_good(length: list[str]) -> None:
    def behave(connection: socket.socket, _: bytes) -> None:
        read_exactly(connection, 5)
        connection.sendall(HELLO)

    with signed_service(behave) as (port, service, _):
        signed = lines(method="POST", body=b"hello")
        answer = ask(port, get("/", *signed, *length, method="POST"))
        assert status_of(answer) == 400
        assert b"digest" in answer
        assert service.heads == []
        whole = get("/", *signed, "Content-Length: 5", method="POST") + b"hello"
        assert status_of(ask(port, whole)) == 200


def test_the_digest_of_nothing_may_be_signed_too() -> None:
    with signed_service() as (port, _, _clock):
        digest = "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"
        moment = f"{NOW // 1_000_000}.{NOW % 1_000_000:06d}"
        signed = hmac.digest(SECRET, f"POST\n/\n{moment}\n{digest}".encode(), "sha256").hex()
        said = lines(method="POST", X_Signature=signed, Content_Digest=digest)
        assert status_of(ask(port, get("/", *said, method="POST"))) == 200
