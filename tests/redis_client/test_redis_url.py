"""How a store is written: what a URL means, what is wrong with others, and that no message shows a password."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diana import Limiter
from diana.core.errors import ConfigError
from diana.redis_client.redis_url import Endpoint, RedisAddress, address_from_url
from diana.stores import open_store
from tests.servers.certificates import Certificates
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until

GOOD: list[tuple[str, RedisAddress]] = [
    ("redis://", RedisAddress("single", (Endpoint("localhost", 6379),))),
    ("valkey://h", RedisAddress("single", (Endpoint("h", 6379),))),
    ("REDIS://h:1", RedisAddress("single", (Endpoint("h", 1),))),
    ("redis://h:1/7", RedisAddress("single", (Endpoint("h", 1),), login={"db": 7})),
    ("redis://h?db=7", RedisAddress("single", (Endpoint("h", 6379),), login={"db": 7})),
    ("redis://[::1]:1", RedisAddress("single", (Endpoint("::1", 1),))),
    ("redis://[::1]", RedisAddress("single", (Endpoint("::1", 6379),))),
    (
        "redis://:p%40%2F@h",
        RedisAddress("single", (Endpoint("h", 6379),), login={"password": "p@/"}),
    ),
    (
        "rediss://u:p@h?ssl_ca_certs=/ca.pem&ssl_check_hostname=false",
        RedisAddress(
            "single",
            (Endpoint("h", 6379),),
            login={
                "username": "u",
                "password": "p",
                "tls": True,
                "ssl_ca_certs": "/ca.pem",
                "ssl_check_hostname": False,
            },
            sentinel_login={"tls": True, "ssl_ca_certs": "/ca.pem", "ssl_check_hostname": False},
        ),
    ),
    ("unix:///a/b.sock?db=2", RedisAddress("single", (Endpoint("/a/b.sock", 0),), login={"db": 2})),
    (
        "redis+sentinel://:p@a,b:1/limits/3?sentinel_password=q",
        RedisAddress(
            "sentinel",
            (Endpoint("a", 26379), Endpoint("b", 1)),
            "limits",
            {"password": "p", "db": 3},
            {"password": "q"},
        ),
    ),
    (
        "valkey+cluster://a,b:1,[::1]:2",
        RedisAddress("cluster", (Endpoint("a", 6379), Endpoint("b", 1), Endpoint("::1", 2))),
    ),
    (
        "redis://h?budget=20ms&namespace=shop&nodes=4",
        RedisAddress("single", (Endpoint("h", 6379),), namespace="shop", budget_us=20_000, nodes=4),
    ),
]

BAD: list[tuple[str, str]] = [
    ("redis:/h", "store must be a URL with a scheme (got 'redis:/h'); write redis://h"),
    ("redis://h:0", "no number from 1 to 65535"),
    ("redis://h:65536", "no number from 1 to 65535"),
    ("redis://h:x", "no number from 1 to 65535"),
    (f"redis://h:{'9' * 5_000}", "no number from 1 to 65535"),
    ("redis://h/x", "the number of a database"),
    ("redis://h/1/2", "the number of a database"),
    ("redis://h?db=x", "'x' is no whole number"),
    ("redis://a,b", "redis+cluster:// or redis+sentinel://"),
    (
        "redis://h?bugdet=1s",
        "'bugdet' is no option of this store's URL; there is namespace, budget",
    ),
    ("redis://h?budget=never", "budget in the URL of the store: 'never' is no duration"),
    ("redis://h?nodes=0", "a whole number from 1"),
    ("redis://h?namespace=a:b", "'a:b' is no namespace"),
    ("redis://h?ssl_ca_certs=/x", "write rediss:// instead"),
    ("rediss://h?ssl_cert_reqs=some", "write none, optional or required"),
    ("rediss://h?ssl_check_hostname=1", "write true or false"),
    ("redis://h?sentinel_password=x", "'sentinel_password' is no option"),
    ("redis://h?budget", "cannot be read"),
    ("redis://[::1", "cannot be read"),
    ("redis://h#1", "cut in an odd place"),
    ("redis+sentinel://h", "which master?"),
    ("redis+cluster://h/1", "a cluster has database 0 only"),
    ("redis+cluster://h?db=1", "a cluster has database 0 only"),
    ("unix://a/b.sock", "with three slashes"),
    ("unix://", "with three slashes"),
    ("redis+ring://h", "nothing called 'redis+ring'"),
]


@pytest.mark.parametrize(("url", "meant"), GOOD, ids=[url for url, _ in GOOD])
def test_what_a_url_means(url: str, meant: RedisAddress) -> None:
    assert address_from_url(url) == meant


@pytest.mark.parametrize(("url", "said"), BAD, ids=[url[:40] for url, _ in BAD])
def test_what_is_wrong_is_said(url: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:SECRET/SECRET@h",
        "redis://u:SECRET?SECRET@h",
        "redis://u:SECRET?SECRET=SECRET@h",
        "redis://u:SECRET#SECRET@h",
        "redis://u:SECRET\u2100@h",
        "redis://u:SECRET[@h",
        "redis://u:SECRET@h:x",
        "redis://u:SECRET@h/x",
        "redis://u:SECRET@h?x=1",
        "redis+sentinel://h/m?sentinel_password=SECRET&SECRET",
        "redis+sentinel://u:SECRET@h",
    ],
)
def test_no_message_shows_a_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert "SECRET" not in str(caught.value)
    assert "SECRET" not in repr(caught.value.__cause__)


def test_a_wrong_password_is_logged_without_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Server(REDIS_7, "--requirepass", "right") as server:
        limiter = _limiter(server.url.replace("://", "://:SECRET@"))
        with caplog.at_level(logging.WARNING, "diana"):
            until(lambda: limiter.take("k").degraded and "unreachable" in caplog.text, "it is said")
        limiter.close()
    assert "SECRET" not in caplog.text


def test_a_unix_socket_and_databases(redis7: Server) -> None:
    first, other = _limiter(redis7.unix_url), _limiter(f"{redis7.unix_url}?db=3")
    over_tcp = _limiter(f"{redis7.url}/3")
    assert [bool(first.take("k")) for _ in range(3)] == [True, True, False]
    assert [bool(one.take("k")) for one in (other, over_tcp, other)] == [True, True, False]
    assert not over_tcp.take("k").degraded
    for limiter in (first, other, over_tcp):
        limiter.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


def test_tls_with_a_certificate_of_the_client(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = f"ssl_certfile={certificates.certificate('client')}&ssl_keyfile={certificates.key('client')}"
    trusted = f"ssl_ca_certs={certificates.certificate('authority')}"
    with Server(REDIS_7, "--tls-auth-clients", "yes", certificates=certificates) as server:
        limiter = _limiter(f"{server.url}?{trusted}&{ours}")
        decisions = [limiter.take("k") for _ in range(3)]
        assert [bool(decision) for decision in decisions] == [True, True, False]
        assert not any(decision.degraded for decision in decisions)
        limiter.close()
        for wrong in (f"?{trusted}", f"?{ours}"):  # the server refuses us; we refuse the server
            limiter = _limiter(f"{server.url}{wrong}", name="refused")
            until(partial(_is_lost, limiter), "it cannot be asked")
            limiter.close()
        assert server.ask("KEYS", "*refused*|k") == []


def test_tls_on_one_side_only_is_said(
    certificates: Certificates, redis7: Server, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = _limiter(redis7.url.replace("redis://", "rediss://"))
    assert limiter.take("k").degraded
    until(lambda: "TLS failed: the server did not reply to the handshake" in caplog.text, "why")
    assert "if this port speaks no TLS, write redis:// instead of rediss://" in caplog.text
    limiter.close()
    caplog.clear()
    with Server(REDIS_7, certificates=certificates) as server:
        limiter = _limiter(server.url.replace("rediss://", "redis://"))
        until(partial(_is_lost, limiter), "it is lost")
        until(lambda: "if this port speaks TLS, write rediss://" in caplog.text, "why")
        limiter.close()


def _limiter(url: str, name: str = "url", **options: Any) -> Limiter:
    separator = "&" if "?" in url else "?"
    return Limiter("2/minute", store=f"{url}{separator}budget=5s", name=name, **options)


def _is_lost(limiter: Limiter) -> bool:
    return limiter.take("k", 0).degraded
