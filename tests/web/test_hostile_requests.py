"""Requests that try to get around their limit. None of them does, crashes anything, or is kept in memory."""

from __future__ import annotations

import logging
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diana.asgi import RateLimitMiddleware as Asgi
from diana.testing import FakeClock
from diana.wsgi import RateLimitMiddleware as Wsgi
from tests.web.calls import Answer, ask, ask_wsgi, hello, policy
from tests.web.test_wsgi import hello as hello_wsgi

Ask = Callable[..., Answer]

BY_ADDRESS = "limits: [{url: /, rules: [{name: you, actor: ip, unit: hour, rpu: 1}]}]"
BEHIND_PROXIES = f"identity: {{trusted_proxies: [10.0.0.0/8, 'fd00::/8']}}\n{BY_ADDRESS}"
BY_ACCOUNT = "limits: [{url: /, rules: [{name: account, actor: account, unit: hour, rpu: 1}]}]"

ATTACKER = "203.0.113.9"
FORWARDED = [
    "1.2.3.4",
    "1.2.3.4, 5.6.7.8",
    "5.6.7.8,1.2.3.4",
    "1.2.3.4:8080",
    "[2001:db8::1]:443",
    "2001:db8::1",
    "::ffff:1.2.3.4",
    "127.0.0.1",
    "10.0.0.1",
    "10.0.0.1, 10.0.0.2, 10.0.0.3",
    "",
    " ",
    ",",
    ", , ,",
    "unknown",
    "_hidden",
    "for=1.2.3.4;proto=https",
    "1.2.3",
    "1.2.3.4.5",
    "0x7f.1",
    "017700000001",
    "1.2.3.4%25eth0",
    "fe80::1%eth0",
    "1.2.3.4\t",
    "1.2.3.4\x00",
    "1.2.3.4\r\nX-Forwarded-For: 6.6.6.6",
    "\x1b[31m1.2.3.4\x1b[0m",
    "\xb9.2.3.4",
    "a" * 100_000,
    ",".join(["6.6.6.6"] * 10_000),
    ",".join(f"10.0.{n // 256}.{n % 256}" for n in range(10_000)),
]


@pytest.fixture(params=["ASGI", "WSGI"])
def through(request: pytest.FixtureRequest) -> Callable[..., Ask]:
    """A way to ask an app behind some rules."""

    def behind(rules: str, **options: Any) -> Ask:
        options.setdefault("clock", FakeClock())
        if request.param == "ASGI":
            asgi = Asgi(hello, policy(rules), **options)
            return lambda *args, **kwargs: ask(asgi, *args, **kwargs)
        wsgi = Wsgi(hello_wsgi, policy(rules), **options)
        return lambda *args, **kwargs: ask_wsgi(wsgi, *args, **kwargs)

    return behind


def passed(answers: list[Answer]) -> int:
    assert {answer.status for answer in answers} <= {200, 503}
    return sum(answer.status == 200 for answer in answers)


def forwarded(value: str) -> list[tuple[str, str]]:
    return [("X-Forwarded-For", value)]


def test_nobody_is_believed_without_trusted_proxies(through: Callable[..., Ask]) -> None:
    asked = through(BY_ADDRESS)
    assert passed([asked(headers=forwarded(value), peer=ATTACKER) for value in FORWARDED]) == 1
    assert asked(headers=forwarded(ATTACKER), peer="198.51.100.1").status == 200


def test_nobody_but_a_trusted_proxy_is_believed(through: Callable[..., Ask]) -> None:
    asked = through(BEHIND_PROXIES)
    assert passed([asked(headers=forwarded(value), peer=ATTACKER) for value in FORWARDED]) == 1


@pytest.mark.parametrize("lines", ["one line", "two lines"])
def test_what_stands_left_of_the_client_is_its_own_invention(
    through: Callable[..., Ask], lines: str
) -> None:
    """A trusted proxy appends the address it sees; everything before that came from the client."""
    asked = through(BEHIND_PROXIES)
    answers = []
    for value in FORWARDED:
        if lines == "one line":
            headers = forwarded(f"{value}, {ATTACKER}")
        else:
            headers = forwarded(value) + forwarded(ATTACKER)
        answers.append(asked(headers=headers, peer="10.0.0.1"))
        answers.append(asked(headers=headers + forwarded("10.1.1.1"), peer="fd00::1"))
    assert passed(answers) == 1
    assert asked(headers=forwarded("198.51.100.1"), peer="10.0.0.1").status == 200


def test_hops_that_cannot_be_read_are_the_nearest_proxys_own(through: Callable[..., Ask]) -> None:
    asked = through(BEHIND_PROXIES)
    unreadable = ["unknown", "_hidden", "1.2.3", "", "a" * 100_000, "\x1b[31m"]
    assert passed([asked(headers=forwarded(value), peer="10.0.0.1") for value in unreadable]) == 1


@pytest.mark.parametrize(
    "name",
    [
        "X_Forwarded_For",
        "x-forwarded_for",
        "Forwarded",
        "X-Real-IP",
        "X-Client-IP",
        "True-Client-IP",
    ],
)
def test_no_other_header_says_where_it_comes_from(through: Callable[..., Ask], name: str) -> None:
    for peer in (ATTACKER, "10.0.0.1"):
        asked = through(BEHIND_PROXIES)
        answers = [asked(headers=[(name, f"198.51.100.{n}")], peer=peer) for n in range(5)]
        assert passed(answers) == 1


def test_addresses_within_one_64_are_one(through: Callable[..., Ask]) -> None:
    asked = through(BY_ADDRESS)
    rotating = [asked(peer=f"2001:db8:0:1:{n:x}::{n:x}") for n in range(1, 200)]
    assert passed(rotating) == 1
    assert asked(peer="2001:db8:0:2::1").status == 200


def test_an_address_in_other_clothes_is_the_same(through: Callable[..., Ask]) -> None:
    asked = through(BY_ADDRESS)
    same = ["1.2.3.4", "::ffff:1.2.3.4", "::FFFF:102:304", "[::ffff:1.2.3.4]:80", "1.2.3.4:5"]
    assert passed([asked(peer=peer) for peer in same]) == 1
    proxied = through(BEHIND_PROXIES)
    assert passed([proxied(headers=forwarded(hop), peer="::ffff:10.0.0.1") for hop in same]) == 1


LOGIN = "url: /login\nrules: [{name: login, unit: hour, rpu: 1}]"
SPELLINGS = [
    "/login", "/login/", "//login", "///login//", "/./login", "/x/../login", "/x/y/../../login", "/../login", "/%6Cogin", "/%6cogin",
    "/l%6fgin", "/login;v=1", "/login;jsessionid=1/", "/login/x", "/%2Flogin", "/x%2F..%2Flogin", "/%2e/login", "/%2E%2E/login",
    "/x/%2e%2e/login", "/\\login", "/%5Clogin", "/login%00", "/login%0A", "/login%0D%0A", "/login?x", "/login?/../x", "/;/login",
    "/x/..;/login", "/login%3Bv=1",
]  # fmt: skip


def test_every_spelling_of_a_path_is_that_path(through: Callable[..., Ask]) -> None:
    asked = through(LOGIN)
    assert passed([asked(path) for path in SPELLINGS]) == 1


@pytest.mark.parametrize("target", ["http://example.org/login", "HTTP://example.org//login?x"])
def test_a_target_with_its_origin_is_that_path(target: str) -> None:
    """As a client of a proxy sends it; some servers hand it on whole."""
    app = Asgi(hello, policy(LOGIN), clock=FakeClock())
    assert passed([ask(app, "/login"), ask(app, target)]) == 1


@pytest.mark.parametrize(
    "headers",
    [
        [("X-HTTP-Method-Override", "GET")],
        [("X-HTTP-Method", "GET")],
        [("X-Method-Override", "HEAD")],
    ],
)
def test_a_method_is_not_overridden(through: Callable[..., Ask], headers: Any) -> None:
    asked = through("url: /\nmethods: [POST]\nrules: [{unit: hour, rpu: 1}]")
    answers = [asked(method="POST"), asked(method="POST", headers=headers)]
    answers += [asked("/?_method=GET", method="POST"), asked(method="post")]
    assert passed(answers) == 1


def test_a_method_nobody_knows_is_limited_by_what_is_for_all(through: Callable[..., Ask]) -> None:
    asked = through("url: /\nrules: [{unit: hour, rpu: 1}]")
    methods = ["GET", "BREW", "\x1b[31m", "G" * 100_000, ""]
    assert passed([asked(method=method) for method in methods]) == 1


def test_two_identities_in_one_request_are_none() -> None:
    app = Asgi(hello, policy(BY_ACCOUNT), clock=FakeClock())
    answers = [
        ask(app, headers=[("X-Account-Id", f"a{n}"), ("X-Account-Id", f"b{n}")]) for n in range(9)
    ]
    assert passed(answers) == 1


def test_a_megabyte_of_header_is_counted_and_forgotten(through: Callable[..., Ask]) -> None:
    asked = through(BY_ACCOUNT)
    big = "x" * 1_000_000
    assert passed([asked(headers=[("X-Account-Id", big)]) for _ in range(3)]) == 1
    assert passed([asked(headers=[("X-Account-Id", big + "y")]) for _ in range(3)]) == 1
    assert asked(headers=[("Accept", big), ("Cookie", big), ("X-Account-Id", "a")]).status == 200
    everywhere = through(
        "url: /\nrules: [{actor: [path, query q, cookie c, host], unit: hour, rpu: 1}]"
    )

    def flood(n: int) -> None:
        headers = [("Cookie", f"c={n}{big}"), ("Host", f"{n}{big}"), ("Accept", f"{n}{big}")]
        everywhere(f"/{n}{big}?q={n}{big}", headers=headers)

    tracemalloc.start()
    try:
        for n in range(20):
            flood(n)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


@pytest.mark.parametrize(
    "value",
    ["a\r\nSet-Cookie: x=1", "\x1b[2J\x1b[31mred", "\x00", "\xff\xfe", "%0d%0a", "${jndi:x}"],
)
def test_nothing_a_client_sends_is_in_the_answer(
    through: Callable[..., Ask], value: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = through(f"response: {{headers: [ietf, legacy, retry-after]}}\n{BY_ACCOUNT}")
    headers = [("X-Account-Id", value), ("Accept", value), ("User-Agent", value)]
    path = "/" + "".join(f"%{ord(sign):02X}" for sign in value)
    with caplog.at_level(logging.DEBUG, "diana"):
        answers = [asked(path, headers=headers) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 503]
    for name, line in answers[1].headers:
        assert f"{name}{line}".isprintable()
        assert value.strip() not in line or value == "\x00"
    assert value.encode("latin-1") not in answers[1].body
    assert value not in caplog.text


def test_identity_functions_that_raise(
    through: Callable[..., Ask], caplog: pytest.LogCaptureFixture
) -> None:
    class Told(BaseException):
        """Not an error of the identity: whoever raises this wants out."""

    for error in (
        LookupError("\x1b[31m"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"),
        RecursionError(),
    ):

        def account(request: Any, error: Exception = error) -> str:
            raise error

        asked = through(BY_ACCOUNT, account=account)
        assert passed([asked(headers=[("X-Account-Id", str(n))]) for n in range(5)]) == 1
        assert asked(peer="198.51.100.1").status == 200
    # Of this thread: that of a store which an earlier test has left behind may have to say something, too.
    assert sum(record.thread == threading.get_ident() for record in caplog.records) == 3
    assert "\x1b" not in caplog.text

    def leaving(request: Any) -> str:
        raise Told

    with pytest.raises(Told):
        through(BY_ACCOUNT, account=leaving)()


def test_an_identity_function_may_not_choose_by_mistake(through: Callable[..., Ask]) -> None:
    """The text of an object may be another one each time."""
    asked = through(BY_ACCOUNT, account=lambda request: object())
    assert passed([asked() for _ in range(5)]) == 1


@given(
    path=st.text(st.characters(max_codepoint=255), max_size=40),
    method=st.text(st.characters(max_codepoint=255), max_size=10),
    peer=st.none() | st.text(max_size=20),
    headers=st.lists(
        st.tuples(
            st.sampled_from(["accept", "cookie", "host", "x-forwarded-for", "x-account-id", "x"]),
            st.binary(max_size=40),
        ),
        max_size=8,
    ),
)
def test_whatever_is_sent_one_passes_and_one_does_not(
    path: str, method: str, peer: str | None, headers: Any
) -> None:
    rules = "limits: [{url: /, rules: [{unit: hour, rpu: 1}, {actor: [ip, account, path, host, cookie c], unit: hour, rpu: 1}]}]"
    sent = {"method": method, "peer": peer, "headers": headers}
    app = Asgi(hello, policy(f"identity: {{trusted_proxies: [10.0.0.0/8]}}\n{rules}"))
    assert [ask(app, f"/{path}", **sent).status for _ in range(2)] == [200, 503]
    wsgi = Wsgi(hello_wsgi, policy(rules))
    assert [ask_wsgi(wsgi, f"/{path}", **sent).status for _ in range(2)] == [200, 503]
