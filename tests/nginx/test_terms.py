"""Plans, exceptions, shadows and chance in nginx; and the ways to a store."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest

from diana import Guard, Request
from diana.responses.denial_response import ResponseBuilder
from diana.rules.loading import rules_from_bytes
from tests.servers.limiting_nginx import LimitingNginx
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until

RULES = """
store: {store}
store_budget: 10s
identity: {{tier: header X-Plan, trust_tier: true}}
limits:
  - url: /plans
    rules:
      - name: plans
        actor: account
        unit: day
        rpu: {{free: 5, pro: 600, else: 7}}
        scope: global
        overrides: {{acme: {{rpu: 9}}, gone: {{rpu: 9, until: 2020-01-01}}, soon: {{rpu: 9, until: 2999-01-01}}}}
  - url: /zero
    rules:
      - name: zero
        actor: account
        unit: day
        rpu: {{free: 0, pro: 600, else: 7}}
        algo: SW
        scope: global
        overrides: {{mallory: {{rpu: 0}}}}
  - {{url: /closed, rules: [{{name: closed, unit: day, rpu: 0, burst: 3}}]}}
  - {{url: /unseen, rules: [{{name: unseen, unit: day, rpu: 0, mode: shadow}}]}}
  - url: /listed
    deny: {{header X-Client: [bad]}}
    rules: [{{name: listed, unit: day, rpu: 9, allow: {{header X-Client: [bad, good]}}}}]
  - {{url: /shadow, rules: [{{name: shadow, unit: day, rpu: 1, scope: global, mode: shadow}}]}}
  - {{url: /chance, rules: [{{name: chance, unit: day, rpu: 1, scope: global, drop: random}}]}}
  - {{url: /write, methods: [POST], rules: [{{name: write, unit: day, rpu: 1}}]}}
  - {{url: /underscore, rules: [{{actor: header X_Odd, unit: day, rpu: 9, missing: deny, status: 403}}]}}
  - {{url: /nobody, rules: [{{name: nobody, actor: account, unit: day, rpu: 1, missing: deny, status: 403}}]}}
"""


@pytest.fixture(scope="module")
def nginx(redis7: Server) -> Iterator[LimitingNginx]:
    with LimitingNginx(RULES.format(store=redis7.url), workers=2) as nginx:
        yield nginx


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/zero", {"X-Account-Id": "a", "X-Plan": "free"}),
        ("/zero", {"X-Account-Id": "mallory", "X-Plan": "pro"}),
        ("/closed", {}),
    ],
)
def test_a_limit_of_zero_denies_every_request(
    nginx: LimitingNginx, path: str, headers: dict[str, str]
) -> None:
    reply = httpx.get(f"{nginx.url}{path}", headers=headers, timeout=60)
    assert reply.status_code == 503
    assert "Retry-After" not in reply.headers
    name = path.removeprefix("/")
    assert reply.headers["RateLimit-Policy"] == f'"{name}";q=0;w=86400'
    assert reply.headers["RateLimit"] == f'"{name}";r=0'
    assert reply.json()["type"] == "about:blank"


def test_beside_a_tier_of_zero_others_pass(nginx: LimitingNginx) -> None:
    headers = {"X-Account-Id": "a", "X-Plan": "pro"}
    reply = httpx.get(f"{nginx.url}/zero", headers=headers, timeout=60)
    assert reply.headers["RateLimit-Policy"] == '"zero";q=600;w=86400'
    assert httpx.get(f"{nginx.url}/unseen", timeout=60).status_code == 200


@pytest.mark.parametrize("accept", ["application/json", "text/plain", "text/html"])
def test_clients_on_a_deny_list_get_403(nginx: LimitingNginx, accept: str) -> None:
    headers = {"X-Client": "bad", "Accept": accept}
    reply = httpx.get(f"{nginx.url}/listed", headers=headers, timeout=60)
    policy = rules_from_bytes(b"url: /\ndeny: {header X-Client: bad}\nrules: [{unit: day, rpu: 9}]")
    request = Request("GET", "/", headers)
    status, fields, body = ResponseBuilder(policy).denial(Guard(policy).check(request))
    assert (reply.status_code, reply.content) == (status, body)
    told = {name.decode() for name, _ in fields}
    assert told == {"cache-control", "content-type", "content-length"}
    assert {name: reply.headers[name].encode() for name in told} == {
        name.decode(): value for name, value in fields
    }
    assert not {"Retry-After", "RateLimit", "RateLimit-Policy"} & set(reply.headers)


def test_nothing_is_counted_of_clients_on_a_deny_list(nginx: LimitingNginx) -> None:
    left = []
    for client in ("new", "bad", "bad", "good", "newer"):
        reply = httpx.get(f"{nginx.url}/listed", headers={"X-Client": client}, timeout=60)
        left.append(reply.headers.get("RateLimit", "")[:12])
    assert left == ['"listed";r=8', "", "", "", '"listed";r=7']


@pytest.mark.parametrize(
    ("headers", "limit"),
    [
        ({}, 7),
        ({"X-Account-Id": "a", "X-Plan": "free"}, 5),
        ({"X-Account-Id": "b", "X-Plan": "pro"}, 600),
        ({"X-Account-Id": "c", "X-Plan": "unheard of"}, 7),
        ({"X-Account-Id": "acme", "X-Plan": "pro"}, 9),
        ({"X-Account-Id": "gone"}, 7),
        ({"X-Account-Id": "soon"}, 9),
    ],
)
def test_each_client_has_its_own_numbers(
    nginx: LimitingNginx, headers: dict[str, str], limit: int
) -> None:
    reply = httpx.get(f"{nginx.url}/plans", headers=headers, timeout=60)
    assert reply.headers["RateLimit-Policy"] == f'"plans";q={limit};w=86400'
    assert reply.headers["RateLimit"].startswith(f'"plans";r={limit - 1};')


def test_a_shadow_counts_and_neither_denies_nor_is_told(
    nginx: LimitingNginx, redis7: Server
) -> None:
    for _ in range(3):
        reply = httpx.get(f"{nginx.url}/shadow", timeout=60)
        assert reply.status_code == 200
        assert "RateLimit" not in reply.headers
    assert redis7.ask("EXISTS", "diana:shadow|all|global|TB|day|=") == 1


def test_chance_denies_before_the_store_is_asked(nginx: LimitingNginx) -> None:
    with httpx.Client(timeout=60) as client:
        replies = [client.get(f"{nginx.url}/chance") for _ in range(60)]
    retries = [reply.headers.get("Retry-After") for reply in replies]
    # Two a day may ask: of sixty requests, hardly one does. The store would say to come back tomorrow.
    assert retries.count("1") >= 50


def test_other_methods_and_clients_without_an_identity(nginx: LimitingNginx) -> None:
    url = f"{nginx.url}/write"
    asked = [httpx.get(url, timeout=60), httpx.post(url, timeout=60), httpx.post(url, timeout=60)]
    assert [reply.status_code for reply in asked] == [200, 200, 503]
    refused = httpx.get(f"{nginx.url}/nobody", timeout=60)
    assert refused.status_code == 403
    assert "Retry-After" not in refused.headers
    assert refused.json()["detail"] == "This request cannot be let through."


def test_a_dash_is_no_underscore(nginx: LimitingNginx) -> None:
    reply = httpx.get(f"{nginx.url}/underscore", headers={"X-Odd": "1"}, timeout=60)
    assert reply.status_code == 403


def test_a_request_is_counted_once_wherever_nginx_sends_it() -> None:
    rules = "limits: [{url: /, rules: [{name: all, unit: day, rpu: 100}]}]"
    server = """
    location = /limited {
      include diana/limit.conf; error_page 404 = /target; content_by_lua_block { ngx.exit(404) }
    }
    location = /free { try_files /nothing /target; }
    location = /target { include diana/limit.conf; content_by_lua_block { ngx.print("reached") } }
    """
    with LimitingNginx(rules, server=server) as nginx, httpx.Client(timeout=60) as client:
        for left, path in enumerate(["/limited", "/free", "/target", "/limited", "/free"], 1):
            reply = client.get(nginx.url + path)
            assert reply.text == "reached"
            assert reply.headers["RateLimit"].startswith(f'"all";r={100 - left};'), path


def test_a_password_a_database_and_a_socket() -> None:
    with Server(REDIS_7) as server:
        server.ask("CONFIG", "SET", "requirepass", "hidden")
        rules = "limits: [{url: /, rules: [{name: all, unit: day, rpu: 5, scope: global, when_down: closed}]}]"
        for store in (
            f"redis://:hidden@127.0.0.1:{server.port}/3",
            f"unix://:hidden@{server.socket}?db=3",
        ):
            with LimitingNginx(f"store_budget: 10s\n{rules}", store) as nginx:
                assert httpx.get(nginx.url, timeout=60).status_code == 200, nginx.log
        with LimitingNginx(
            f"store_budget: 10s\n{rules}", f"redis://127.0.0.1:{server.port}"
        ) as nginx:
            assert httpx.get(nginx.url, timeout=60).status_code == 503
            until(lambda: "unauthenticated" in nginx.log, "the log says why")
        side = server.client(password="hidden", db=3)
        assert side.keys() == [b"diana:all|all|global|TB|day|="]


LIVES = """
location = /-/ends {
  content_by_lua_block {
    local counters = ngx.shared.diana_counters
    for _, key in ipairs(counters:get_keys()) do ngx.say(ngx.now() + counters:ttl(key)) end
  }
}
"""


def test_a_faster_tier_keeps_what_a_slower_one_counts_on() -> None:
    """By nginx's own count; in the store it is the script that sees to it."""
    rules = """
identity: {tier: header X-Plan, trust_tier: true}
limits:
  - url: /
    rules: [{name: plan, actor: all, unit: hour, rpu: {free: 1, pro: 10000, else: 1}}]
"""
    with LimitingNginx(rules, server=LIVES) as nginx:
        asked = time.time()
        statuses = [
            httpx.get(nginx.url, headers={"X-Plan": plan}, timeout=60).status_code
            for plan in ("free", "pro", "free")
        ]
        assert statuses == [200, 200, 503]
        (ends,) = httpx.get(f"{nginx.url}/-/ends", timeout=60).text.split()
        assert float(ends) > asked + 3_590


def test_other_rules_do_not_shorten_the_life_of_what_was_counted() -> None:
    rules = "{{url: /, rules: [{{name: edited, actor: all, unit: hour, rpu: {}}}]}}"
    with LimitingNginx(rules.format(1), server=LIVES) as nginx:
        asked = time.time()
        assert httpx.get(nginx.url, timeout=60).status_code == 200
        nginx.export(rules.format(10_000))
        nginx.reload()
        assert httpx.get(nginx.url, timeout=60).status_code == 200
        (ends,) = httpx.get(f"{nginx.url}/-/ends", timeout=60).text.split()
        assert float(ends) > asked + 3_590
