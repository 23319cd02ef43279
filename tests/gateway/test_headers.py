"""Which lines go on: a table of what clients, proxies and upstreams send."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_network
from typing import Any

import pytest

from diana import ConfigError
from diana.core.client_address import Proxies
from diana.gateway.forwarding_headers import RequestLines, checked_underscores, response_lines

TRUSTED = Proxies([ip_network("10.0.0.0/8"), ip_network("fd00::/8")])
NOBODY = Proxies()
WHENCE = {
    "x-forwarded-for": "203.0.113.9",
    "x-forwarded-proto": "http",
    "x-forwarded-host": "shop",
    "forwarded": 'for=203.0.113.9;host="shop";proto=http',
}


def forwarded(
    *lines: tuple[str, str],
    peer: str | None = "203.0.113.9",
    proxies: Proxies = TRUSTED,
    scheme: str = "http",
    host: str = "shop",
    own_host: bool = False,
    underscores: Collection[str] = (),
) -> dict[str, str]:
    """Everything that goes on, but `host`."""
    headers = [("host", host), *lines] if host else lines
    scope: dict[str, Any] = {
        "type": "websocket" if scheme.startswith("ws") else "http",
        "scheme": scheme,
        "http_version": "1.1",
        "client": None if peer is None else (peer, 1),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
    }
    sent = RequestLines(proxies, own_host, underscores).of(scope).lines
    assert len(dict(sent)) == len(sent)
    return {name: value for name, value in sent if name != "host"}


@pytest.mark.parametrize(
    "name",
    ["connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
     "trailer", "transfer-encoding", "upgrade", "expect"],
)  # fmt: skip
def test_lines_of_one_connection_stay_on_it(name: str) -> None:
    assert forwarded((name, "x"), ("x-own", "1")) == {"x-own": "1", **WHENCE}


@pytest.mark.parametrize(
    "value", ["X-Account-Id, Cookie", "close, x-account-id,cookie", "COOKIE ,X-ACCOUNT-ID", ",,cookie,x-account-id,"]
)  # fmt: skip
def test_connection_names_nothing_away_that_the_rules_judged_by(value: str) -> None:
    said = (("x-account-id", "alice"), ("cookie", "session=1"))
    assert forwarded(*said, ("connection", value)) == {**dict(said), **WHENCE}


def test_the_settings_of_another_protocol_stay_with_it() -> None:
    lines = (("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c"), ("http2-settings", "x"))
    assert forwarded(*lines) == WHENCE


def test_connection_cannot_name_away_what_the_gateway_says() -> None:
    named = "x-forwarded-for, forwarded, content-length, host, x-forwarded-host"
    sent = forwarded(("connection", named), ("content-length", "5"))
    assert sent == {"content-length": "5", **WHENCE}


@pytest.mark.parametrize(
    "name", ["script_name", "x_api_key", "x-api_key", "_", "path_info", "x-forwarded-client_cert"]
)
@pytest.mark.parametrize("peer", ["203.0.113.9", "10.0.0.8"])
def test_names_with_an_underscore_stay(name: str, peer: str) -> None:
    assert name not in forwarded((name, "/x1"), peer=peer)


def test_but_those_that_are_let_through() -> None:
    let = checked_underscores(["X_Trace_Id"])
    sent = forwarded(("x_trace_id", "7"), ("x_api_key", "8"), underscores=let)
    assert sent == {"x_trace_id": "7", **WHENCE}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("X_Forwarded_For", "x_forwarded_for is x-forwarded-for to some servers, which only the gateway may set; leave it out"),
        ("Content_Length", "content_length is content-length to some servers"),
        ("Transfer_Encoding", "transfer_encoding is transfer-encoding to some servers"),
        ("X-Trace-Id", "x-trace-id has no underscore, so it is forwarded anyway; leave it out"),
        ("X_Trace Id", "is no name that HTTP allows; write one such as X_Trace_Id"),
    ],
)  # fmt: skip
def test_what_only_the_gateway_may_say_is_never_let_through(name: str, said: str) -> None:
    with pytest.raises(ConfigError) as told:
        checked_underscores([name])
    assert said in str(told.value)


SPOOFED = [
    ("x-forwarded-for", "198.51.100.1"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-host", "evil"),
    ("x-forwarded-port", "1"),
    ("x-forwarded-prefix", "/admin"),
    ("x-real-ip", "198.51.100.1"),
    ("forwarded", "for=198.51.100.1"),
    ("x_forwarded_for", "198.51.100.1"),
    ("x-forwarded_for", "198.51.100.1"),
    ("x_real_ip", "198.51.100.1"),
    ("content_length", "5"),
    ("transfer_encoding", "chunked"),
]


@pytest.mark.parametrize("line", SPOOFED, ids=lambda line: line[0])
@pytest.mark.parametrize("proxies", [TRUSTED, NOBODY], ids=["some trusted", "nobody trusted"])
def test_what_a_client_says_of_itself_is_replaced(line: tuple[str, str], proxies: Proxies) -> None:
    assert forwarded(line, line, ("x-own", "1"), proxies=proxies) == {"x-own": "1", **WHENCE}


def test_what_a_trusted_proxy_says_is_added_to() -> None:
    sent = forwarded(
        ("x-forwarded-for", "198.51.100.1"),
        ("x-forwarded-for", "198.51.100.2, 10.0.0.7"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "www.example.org"),
        ("x-forwarded-port", "443"),
        ("x-real-ip", "198.51.100.1"),
        ("forwarded", "for=198.51.100.1;proto=https"),
        ("x_forwarded_for", "1.2.3.4"),
        peer="10.0.0.8",
    )
    assert sent == {
        "x-forwarded-for": "198.51.100.1, 198.51.100.2, 10.0.0.7, 10.0.0.8",
        "x-forwarded-proto": "https",
        "x-forwarded-host": "www.example.org",
        "x-forwarded-port": "443",
        "x-real-ip": "198.51.100.1",
        "forwarded": 'for=198.51.100.1;proto=https, for=10.0.0.8;host="shop";proto=http',
    }


def test_a_proxy_that_does_not_say_forwarded_is_not_made_the_client_by_us() -> None:
    sent = forwarded(("x-forwarded-for", "198.51.100.1"), peer="10.0.0.8")
    assert "forwarded" not in sent
    assert sent["x-forwarded-for"] == "198.51.100.1, 10.0.0.8"


@pytest.mark.parametrize(
    ("peer", "address", "node"),
    [
        ("2001:db8::1", "2001:db8::1", '"[2001:db8::1]"'),
        ("::ffff:203.0.113.9", "203.0.113.9", "203.0.113.9"),
        ("fe80::1%eth0", "fe80::1", '"[fe80::1]"'),
        (None, "unknown", "unknown"),
        ("/run/client.sock", "unknown", "unknown"),
    ],
)
def test_every_peer_has_a_spelling(peer: str | None, address: str, node: str) -> None:
    sent = forwarded(peer=peer)
    assert sent["x-forwarded-for"] == address
    assert sent["forwarded"] == f'for={node};host="shop";proto=http'


@pytest.mark.parametrize(
    ("scheme", "proto"), [("http", "http"), ("https", "https"), ("ws", "http"), ("wss", "https")]
)
def test_the_scheme_is_that_of_the_connection(scheme: str, proto: str) -> None:
    assert forwarded(scheme=scheme)["x-forwarded-proto"] == proto


def test_a_host_cannot_break_out_of_its_quotes() -> None:
    sent = forwarded(host='a";for=1.2.3.4;x="\\')
    assert sent["forwarded"] == r'for=203.0.113.9;host="a\";for=1.2.3.4;x=\"\\";proto=http'


def test_without_a_host_none_is_said() -> None:
    sent = forwarded(host="")
    assert "x-forwarded-host" not in sent
    assert sent["forwarded"] == "for=203.0.113.9;proto=http"


def test_values_that_are_no_ascii_keep_their_meaning() -> None:
    # As UTF-8 the same bytes; Latin-1 is written as UTF-8.
    assert forwarded(("x-name", "Zo\u00c3\u00ab"))["x-name"] == "Zo\u00eb"
    assert forwarded(("x-name", "Zo\u00eb"))["x-name"] == "Zo\u00eb"


@pytest.mark.parametrize(
    ("raw", "status", "kept"),
    [
        ([("Keep-Alive", "timeout=5"), ("X-A", "1")], 200, [("x-a", "1")]),
        ([("Connection", "X-A, close"), ("X-A", "1"), ("X-B", "2")], 200, [("x-b", "2")]),
        (
            [("Connection", "content-length"), ("Content-Length", "5")],
            200,
            [("content-length", "5")],
        ),
        ([("Transfer-Encoding", "chunked"), ("Trailer", "x")], 200, []),
        ([("Upgrade", "h2c"), ("Connection", "Upgrade")], 200, []),
        ([("Content-Length", "5"), ("ETag", "x")], 304, [("etag", "x")]),
        ([("Content-Length", "0")], 204, []),
        (
            [("Set-Cookie", "a"), ("Set-Cookie", "b")],
            200,
            [("set-cookie", "a"), ("set-cookie", "b")],
        ),
    ],
)
def test_lines_of_an_answer(
    raw: list[tuple[str, str]], status: int, kept: list[tuple[str, str]]
) -> None:
    lines = response_lines([(name.encode(), value.encode()) for name, value in raw], status)
    assert lines == [(name.encode(), value.encode()) for name, value in kept]
