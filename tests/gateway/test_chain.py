"""The chain: the limiter first, then the filters in the file's order; who is answered goes no further."""

from __future__ import annotations

import io
from typing import Any

import pytest

from diana import ConfigError
from diana.core.client_address import Proxies
from diana.core.filter_settings import App, Filter, made
from diana.core.policy import Policy, Settings
from diana.gateway.app import gateway
from diana.gateway.upstream import upstream_from_url
from diana.guard import AsyncGuard
from diana.rules.loading import rules_from_bytes
from tests.gateway.upstreams import (
    HELLO,
    ask,
    gateway_to,
    get,
    listening,
    says,
    status_of,
    upstream,
)

TWICE = "limits: [{url: /, rules: [{name: twice, unit: hour, rpu: 2, algo: W, align: first}]}]"


def noting(seen: list[str], name: str, refuses: bool = False) -> Filter:
    """A filter that writes down whom it saw."""

    def wrap(app: App) -> App:
        async def filtered(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                return await app(scope, receive, send)
            seen.append(name)
            if not refuses:
                return await app(scope, receive, send)
            await send({"type": "http.response.start", "status": 418, "headers": []})
            await send({"type": "http.response.body", "body": b"no"})
            return None

        return filtered

    return Filter(lambda _: wrap)


def test_a_limited_request_reaches_neither_filters_nor_the_upstream() -> None:
    seen: list[str] = []
    rules = rules_from_bytes(TWICE.encode())
    chain = [made(name, noting(seen, name), {}, Proxies()) for name in ("first", "second")]
    policy = Policy(rules.rules, settings=Settings(filters=tuple(chain)))
    with upstream(says(HELLO)) as service:
        with listening(gateway(AsyncGuard(policy), upstream_from_url(service.url))) as port:
            statuses = [status_of(ask(port, get("/"))) for _ in range(5)]
        assert statuses == [200, 200, 503, 503, 503]
        assert seen == ["first", "second"] * 2
        assert len(service.heads) == 2


def test_who_is_answered_by_a_filter_goes_no_further() -> None:
    seen: list[str] = []
    chain = [
        made("first", noting(seen, "first"), {}, Proxies()),
        made("refusing", noting(seen, "refusing", refuses=True), {}, Proxies()),
        made("last", noting(seen, "last"), {}, Proxies()),
    ]
    policy = Policy([], settings=Settings(filters=tuple(chain)))
    with upstream(says(HELLO)) as service:
        with listening(gateway(AsyncGuard(policy), upstream_from_url(service.url))) as port:
            assert status_of(ask(port, get("/"))) == 418
        assert seen == ["first", "refusing"]
        assert service.heads == []


def test_answers_that_pass_carry_where_the_client_stands() -> None:
    with upstream(says(HELLO)) as service, gateway_to(service.url, TWICE) as port:
        assert b'ratelimit: "twice";r=1;t=3600' in ask(port, get("/"))


def test_the_access_log_has_the_denied_too() -> None:
    written = io.StringIO()
    with upstream(says(HELLO)) as service:
        target = upstream_from_url(service.url)
        guard = AsyncGuard(rules_from_bytes(TWICE.encode()))
        app = gateway(guard, target, access_log=written)
        with listening(app) as port:
            for _ in range(3):
                ask(port, get("/a?b", "User-Agent: test/1"))
    lines = written.getvalue().splitlines()
    assert [line.split('" ')[1].split()[0] for line in lines] == ["200", "200", "503"]
    assert all('127.0.0.1 "GET /a?b HTTP/1.1" ' in line for line in lines)
    outcomes = [line.partition('ms "test/1" ')[2] for line in lines]
    assert outcomes[:2] == ["allowed", "allowed"]
    assert outcomes[2].startswith('denied "')


FILTERS = "filters:\n{}\nlimits: [{{url: /, rules: [{{unit: second, rpu: 1}}]}}]\n"
MISTAKES = [
    ("  - acess: {deny: 10.0.0.0/8}", 2, 5, "filters[0]", "'acess' is no filter; did you mean access?"),
    ("  - nonsense", 2, 5, "filters[0]", "'nonsense' is no filter; there is access, signature"),
    ("  - access", 2, 5, "filters[0]", "there is neither allow nor deny; write one of them"),
    ("  - access:", 2, 5, "filters[0]", "there is neither allow nor deny; write one of them"),
    ("  - access: yes", 2, 5, "filters[0]", "'yes' where options of access should be; write its fields as name: value"),
    ("  - access: {denny: x}", 2, 14, "filters[0].denny", "'denny' is no field here; did you mean deny?"),
    (
        "  - access:\n      deny: 10.0.0.1/8",
        3,
        13,
        "filters[0].deny",
        "'10.0.0.1/8' is no network; write an address or a CIDR such as 10.0.0.0/8 (host bits zero)",
    ),
    ("  - access: {allow: []}", 2, 21, "filters[0].allow", "the list is empty; write at least one network or header"),
    ("  - access: {allow: header}", 2, 21, "filters[0].allow", "'header' names no header; write header X-Staff: yes"),
    (
        "  - {access: {deny: 10.0.0.0/8}, signature: x}",
        2,
        5,
        "filters[0]",
        "a filter is one name with its options under it; write each behind a dash of its own",
    ),
    (
        "  - signature",
        2,
        5,
        "filters[0]",
        "there are no keys; write keys: and under it names, such as mobile: env MOBILE_KEY",
    ),
    (
        "  - signature: {keys: {app: s3cret}}",
        2,
        23,
        "filters[0].keys",
        "the key 'app' says not where its secret is; write env NAME or file PATH",
    ),
    (
        "  - signature: {keys: {app: env X}, window: soon}",
        2,
        45,
        "filters[0].window",
        "'soon' is no duration; write second, minute, hour, day, or a number with ms, s, m, h or d such as 30s or 5m",
    ),
    ("  access: x", 2, 3, "filters", "filters is a list; write each filter behind a dash (-)"),
    ("  []", 2, 3, "filters", "the list is empty; write at least one filter, or remove the field"),
]  # fmt: skip


@pytest.mark.parametrize(("written", "line", "column", "path", "said"), MISTAKES)
def test_a_wrong_filter_is_told_with_its_place(
    written: str, line: int, column: int, path: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        rules_from_bytes(FILTERS.format(written).encode())
    error = caught.value.errors[0]
    assert (error.line, error.column, error.path, error.message) == (line, column, path, said)


def test_a_secret_that_is_missing_is_told_when_the_gateway_starts() -> None:
    rules = FILTERS.format("  - signature: {keys: {app: env DIANA_NO_SUCH_KEY}}")
    policy = rules_from_bytes(rules.encode())  # checking a file needs no secrets
    with pytest.raises(ConfigError, match="DIANA_NO_SUCH_KEY is not set") as caught:
        gateway(AsyncGuard(policy), upstream_from_url("http://127.0.0.1:1"))
    assert (caught.value.line, caught.value.path) == (2, "filters[0].keys")


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:9000", "ftp://x", "http://", "http://x:99999", "http://a:b@x", "http://x/?q", "http://x/ y"],
)  # fmt: skip
def test_an_upstream_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        upstream_from_url(url)
