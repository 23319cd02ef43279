"""An upstream with a prefix: no path leads out of it, in whichever way it is read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diana.gateway.path_traversal import escapes_prefix
from tests.gateway.upstreams import (
    HELLO,
    Upstream,
    ask,
    gateway_to,
    get,
    says,
    status_of,
    upstream,
)

UP = [
    "/..",
    "/../v1/login",
    "/../admin",
    "//../admin",
    "/a/../../admin",
    "/a//../../admin",
    "/./../admin",
    "/%2e%2e/admin",
    "/%2E./admin",
    "/.%2e/admin",
    "/%2e%2e%2fadmin",
    "/..%2Fadmin",
    "/..%5cadmin",
    "/..\\admin",
    "/a\\..\\..\\admin",
    "/..;x=1/admin",
    "/;/../admin",
    "/a/..;/../admin",
    "/a%2Fb/../../admin",
    "/a%2Fb/%2e%2e/../admin",
    "/%252e%252e/admin",
    "/%25252e%25252e/admin",
    "/..%00/admin",
    "/.%09./admin",
    "/%2525252525252e",
]
STAY_BELOW = [
    "/",
    "/a/../b",
    "/a/b/../../c",
    "/a/%2e%2e/b",
    "/a..b/..c/d..",
    "/.../x",
    "/100%25",
    "/%E2%82%AC/a%20b",
    "/a;v=1/b",
    "/files/a.b.c/.well-known",
]


HANDSHAKE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
)


@pytest.fixture(scope="module")
def service() -> Iterator[Upstream]:
    with upstream(says(HELLO)) as service:
        yield service


@pytest.fixture(scope="module")
def port(service: Upstream) -> Iterator[int]:
    with gateway_to(f"{service.url}/v1") as port:
        yield port


@pytest.mark.parametrize("target", UP)
def test_a_path_that_climbs_is_refused(service: Upstream, port: int, target: str) -> None:
    service.heads.clear()
    assert status_of(ask(port, get(target))) == 400
    assert status_of(ask(port, get(f"{target}?x=1"))) == 400
    assert status_of(ask(port, get(target, *HANDSHAKE))) == 400
    assert service.heads == []


@pytest.mark.parametrize("target", STAY_BELOW)
def test_all_others_go_on_behind_the_prefix(service: Upstream, port: int, target: str) -> None:
    service.heads.clear()
    assert status_of(ask(port, get(f"{target}?x=/../.."))) == 200
    assert service.heads[0].startswith(f"GET /v1{target}?x=/../.. HTTP/1.1\r\n".encode())


def test_without_a_prefix_there_is_nothing_to_leave(service: Upstream) -> None:
    with gateway_to(service.url) as port:
        for target in UP:
            service.heads.clear()
            assert status_of(ask(port, get(target))) == 200
            assert service.heads[0].startswith(f"GET {target} HTTP/1.1\r\n".encode())


@pytest.mark.parametrize("path", [b"/.\t./x", b"/..\x00", b"/.\x7f.\\x"])
def test_raw_control_characters_hide_nothing(path: bytes) -> None:
    assert escapes_prefix(path)
