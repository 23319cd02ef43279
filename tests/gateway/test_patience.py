"""Clients that take their time: for each part of a request there is an end to waiting."""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import suppress

import pytest

from tests.gateway.upstreams import (
    HELLO,
    PATIENCE,
    answered_in_time,
    connected,
    gateway_to,
    get,
    read_exactly,
    says,
    status_of,
    to_the_end,
    upstream,
)

BRIEF = 0.3


def test_a_head_that_does_not_end_is_not_waited_for() -> None:
    with upstream(says(HELLO)) as service, gateway_to(service.url, head_seconds=BRIEF) as port:
        for sent in (b"", b"GET / HTTP/1.1\r\nHost: sh", b"\r\n"):
            answer = b""
            # Who stands still before sending is hung up on, and what is sent then is met by a reset.
            with connected(port) as client, suppress(ConnectionError):
                client.sendall(sent)
                while more := client.recv(65_536):
                    answer += more
            assert answer == b""


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nHost: sh", b"\r\n"])
def test_nor_is_a_second_one_on_the_same_connection(sent: bytes) -> None:
    with (
        upstream(says(HELLO)) as service,
        gateway_to(service.url, head_seconds=BRIEF) as port,
        answered_in_time(port, get("/")) as (client, _),
    ):
        assert read_exactly(client, 5) == b"hello"
        client.sendall(sent)
        assert to_the_end(client) == b""


def test_nor_is_the_rest_of_a_body_that_was_answered() -> None:
    rules = "filters: [access: {deny: 127.0.0.1}]\nlimits: [{url: /, rules: [{unit: second, rpu: 100}]}]"
    with (
        upstream(says(HELLO)) as service,
        gateway_to(service.url, rules, head_seconds=BRIEF) as port,
        answered_in_time(port, get("/", "Content-Length: 100", method="POST")) as (client, head),
    ):
        assert head.startswith(b"HTTP/1.1 403")
        client.sendall(b"x")
        to_the_end(client)


def test_a_slow_second_head_does_not_cut_the_first_answer() -> None:
    go_on = threading.Event()

    def behave(connection: socket.socket, _: bytes) -> None:
        connection.sendall(HELLO[:-5])  # so far we know that it was in time
        assert go_on.wait(PATIENCE)
        connection.sendall(HELLO[-5:])

    slow = get("/") + b"GET / HTTP/1.1\r\nHo"
    with (
        upstream(behave) as service,
        gateway_to(service.url, head_seconds=0.01) as port,
        answered_in_time(port, slow) as (client, _),
    ):
        client.settimeout(BRIEF)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(PATIENCE)
        go_on.set()
        assert to_the_end(client) == b"hello"


@pytest.mark.parametrize("framing", ["Content-Length: 100", "Transfer-Encoding: chunked"])
def test_a_body_that_stops_is_a_408_and_never_looks_complete(framing: str) -> None:
    got: list[bytes] = []

    def behave(connection: socket.socket, _: bytes) -> None:
        got.append(to_the_end(connection))

    with upstream(behave) as service, gateway_to(service.url, body_seconds=BRIEF) as port:
        with connected(port) as client:
            client.sendall(get("/", framing, method="POST") + b"5\r\nhello\r\n")
            assert status_of(to_the_end(client)) == 408
        assert service.gone.wait(PATIENCE)
        assert not b"".join(got).endswith(b"0\r\n\r\n")


def test_who_pipelines_and_leaves_takes_the_request_along(caplog: pytest.LogCaptureFixture) -> None:
    asked = threading.Event()

    def behave(connection: socket.socket, _: bytes) -> None:
        asked.set()
        assert connection.recv(1) == b""  # closed by the gateway

    with (
        caplog.at_level(logging.ERROR),
        upstream(behave) as service,
        gateway_to(service.url) as port,
    ):
        with connected(port) as client:
            client.sendall(get("/1") + get("/2") + get("/3"))
            assert asked.wait(PATIENCE)
        assert service.gone.wait(PATIENCE)
        assert len(service.heads) == 1
    assert caplog.records == []


def test_what_is_no_request_is_not_answered_in_the_place_of_one() -> None:
    asked = threading.Event()

    def behave(connection: socket.socket, _: bytes) -> None:
        asked.set()
        connection.recv(1)

    with upstream(behave) as service, gateway_to(service.url) as port, connected(port) as client:
        client.sendall(get("/"))
        assert asked.wait(PATIENCE)
        client.sendall(b"this is no HTTP\r\n\r\n")
        assert to_the_end(client) == b""
        assert service.gone.wait(PATIENCE)
