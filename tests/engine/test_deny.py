"""`deny`: clients that are denied with 403, and never counted."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute

from diana import AsyncGuard, ConfigError, Guard, Policy, Request, Verdict
from diana.asgi import RateLimitMiddleware as Asgi
from diana.cli.main import diana as command
from diana.rules.document.difference import difference
from diana.rules.loading import rules_from_bytes, rules_from_remote
from diana.starlette import rate_limit
from diana.telemetry.denial_log import DenialLog
from diana.telemetry.prometheus import PrometheusObserver
from diana.testing import FakeClock
from diana.wsgi import RateLimitMiddleware as Wsgi
from tests.web.calls import Answer, ask, ask_wsgi, hello
from tests.web.test_asgi import Socket

BEGIN_US = 1_700_000_000_000_000
BLOCK = """
limits:
  - url: /
    deny: {ip: [203.0.113.0/24], header X-Client: [bad, worse]}
    allow: {ip: [203.0.113.7, 10.0.0.0/8]}
    rules: [{name: api, actor: ip, unit: minute, rpu: 2}, {name: all, unit: hour, rpu: 5}]
"""


def rules(text: str = BLOCK) -> Policy:
    return rules_from_bytes(text.encode())


def guard(text: str = BLOCK) -> Guard:
    return Guard(rules(text), clock=FakeClock(BEGIN_US))


def asked(peer: str = "198.51.100.1", path: str = "/", **headers: str) -> Request:
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return Request("GET", path, named, peer=peer)


def is_forbidden(verdict: Verdict) -> bool:
    denial = verdict.denial
    return (
        verdict.status == 403
        and denial is not None
        and denial.never
        and denial.retry_after is None
        and [rule.name for rule in verdict.rules] == ["api"]
    )


def test_the_verdict_names_the_rule_and_the_entry() -> None:
    checks = guard()
    for request, listed in (
        (asked("203.0.113.9"), "ip 203.0.113.0/24"),
        (asked(X_Client="worse"), "header x-client"),
    ):
        for verdict in (checks.check(request), checks.peek(request)):
            assert is_forbidden(verdict)
            assert verdict.denied_by is checks.policy.rules[0]
            assert verdict.listed == listed
    assert "✗ denied: its deny list has the request's header x-client" in verdict.explain()
    assert "denied by api; charged to none" in verdict.explain()


def test_others_are_counted_as_ever_and_the_denied_are_not() -> None:
    checks = guard()
    for _ in range(20):
        assert not checks.check(asked(X_Client="bad"))
    decisions = checks.check(asked()).decisions
    assert [decision.remaining for decision in decisions] == [1, 4]
    assert checks.check(asked()).status is None


def test_deny_wins_over_allow() -> None:
    checks = guard()
    assert is_forbidden(checks.check(asked("203.0.113.7")))
    assert is_forbidden(checks.check(asked("10.1.2.3", X_Client="bad")))
    assert all(checks.check(asked("10.1.2.3")) for _ in range(9))


def test_deny_wins_over_only_and_over_functions() -> None:
    policy = rules(
        "url: /\nrules: [{name: api, unit: minute, rpu: 9, only: {header X-Plan: free}, deny: {header X-Client: bad}}]"
    ).with_functions("api", allow=lambda _: True)
    assert is_forbidden(Guard(policy).check(asked(X_Client="bad")))
    assert Guard(policy).check(asked()).rules == ()


def test_deny_wins_over_a_limit_that_is_exceeded_and_over_missing() -> None:
    checks = guard(
        """
        limits:
        - {url: /, rules: [{name: full, unit: minute, rpu: 0}, {name: key, actor: header X-Key, unit: minute, rpu: 1, missing: deny}]}
        - {url: /a, rules: [{name: api, unit: minute, rpu: 9, deny: {header X-Client: bad}}]}
        """
    )
    assert is_forbidden(checks.check(asked(path="/a", X_Client="bad")))
    denied = checks.check(asked(X_Client="bad"))
    assert (denied.status, denied.listed) == (None, None)


def test_a_list_of_a_rule_and_one_of_its_block_both_hold() -> None:
    checks = guard(
        "url: /\ndeny: {ip: 203.0.113.9}\nrules: [{name: api, unit: minute, rpu: 9, deny: {header X-Client: bad}}]"
    )
    assert is_forbidden(checks.check(asked("203.0.113.9")))
    assert is_forbidden(checks.check(asked(X_Client="bad")))
    assert checks.check(asked())


def test_defaults_deny_for_all_rules_that_say_nothing_else() -> None:
    checks = guard(
        """
        defaults: {deny: {header X-Client: bad}}
        limits: [{url: /, rules: [{name: api, unit: minute, rpu: 9}]}]
        """
    )
    assert is_forbidden(checks.check(asked(X_Client="bad")))


def test_what_is_excepted_is_not_denied() -> None:
    checks = guard(BLOCK.replace("    allow:", "    except: /healthz\n    allow:"))
    assert checks.check(asked("203.0.113.9", "/healthz"))
    assert is_forbidden(checks.check(asked("203.0.113.9", "/healthz/../a")))


def test_a_request_that_contradicts_itself_is_denied() -> None:
    checks = guard()
    twice = Request("GET", "/", [("X-Client", "good"), ("X-Client", "bad")], peer="198.51.100.1")
    assert checks.check(twice).listed == "header x-client, since it contradicts itself"


def test_in_some_reading_of_the_path_is_enough() -> None:
    checks = guard(
        "url: /t/{tenant}\ndeny: {segment tenant: acme}\nrules: [{name: api, unit: minute, rpu: 9}]"
    )
    for path in ("/t/acme", "/t/other/../acme", "/t/%61cme", "/t/other%2F..%2Facme"):
        assert is_forbidden(checks.check(asked(path=path))), path
    assert checks.check(asked(path="/t/other"))


def test_an_account_that_code_fails_to_find_is_not_on_the_list() -> None:
    limited = guard(
        "url: /\nrules: [{name: api, actor: ip, unit: minute, rpu: 9, deny: {account: bad, ip: 203.0.113.9}}]"
    )
    request = asked()
    request.identities = {"account": ValueError("no database")}
    verdict = limited.check(request)
    assert verdict
    assert repr(verdict.identity_errors["api"]) == "ValueError('no database')"
    assert limited.identity_errors == 1
    request = asked("203.0.113.9")
    request.identities = {"account": ValueError("no database")}
    assert is_forbidden(limited.check(request))


@pytest.mark.parametrize("name", ["deny", "allow", "only"])
@pytest.mark.parametrize("path", ["/", "/b/../a"])
def test_an_error_in_finding_an_account_names_the_list_that_looks_at_it(
    name: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    limited = guard(
        f"url: /\nrules: [{{name: zz, actor: ip, unit: minute, rpu: 9, {name}: {{account: bad}}}}]"
    )
    for _ in range(2):
        request = asked(path=path)
        request.identities = {"account": ValueError("no database")}
        verdict = limited.check(request)
    assert list(verdict.identity_errors) == ["zz"]
    assert limited.identity_errors == 2
    sought = f"account of the {name} list"
    assert f"finding its {sought} failed: ValueError('no database')" in verdict.explain()
    assert caplog.messages == [
        f"finding the {sought} of rule 'zz' failed: ValueError('no database')"
    ]


def test_an_error_that_a_list_and_the_actor_meet_is_counted_once() -> None:
    limited = guard(
        "url: /\nrules: [{actor: account, unit: minute, rpu: 9, allow: {account: a}, deny: {account: b}}]"
    )
    request = asked()
    request.identities = {"account": ValueError("no database")}
    assert [decision.key for decision in limited.check(request).decisions] == ["?198.51.100.1"]
    assert limited.identity_errors == 1


def test_the_middleware_calls_account_for_a_deny_list() -> None:
    policy = rules(
        "identity: {account: code}\nlimits: [{url: /, rules: [{unit: minute, rpu: 9, deny: {account: [mallory]}}]}]"
    )
    limited = Asgi(hello, policy, account=lambda request: request.header("x-user"))
    assert [ask(limited, headers=[("X-User", user)]).status for user in ("mallory", "a")] == [
        403,
        200,
    ]


def test_a_rule_in_the_shadow_only_reports() -> None:
    for path in ("/a", "/b/../a"):
        checks = guard(
            "url: /a\nrules: [{name: api, unit: minute, rpu: 9, mode: shadow, deny: {header X-Client: bad, path: /c}}]"
        )
        verdict = checks.check(asked(path=path, X_Client="bad"))
        assert verdict
        assert [bool(decision) for decision in verdict.decisions] == [False]
        said = "✗ denied: its deny list has the request's header x-client (shadow: only reported)"
        assert said in verdict.explain()
        assert said in checks.peek(asked(path=path, X_Client="bad")).explain()
        assert checks.check(asked(path=path)).decisions[0].remaining == 8


def test_explain_says_that_a_rule_in_the_shadow_lists_the_request(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(
        "url: /a\nrules: [{name: api, unit: minute, rpu: 9, mode: shadow, deny: {header X-Client: bad}}]"
    )
    arguments = ["explain", str(file), "GET", "/a", "-H", "X-Client: bad"]
    drawn = CliRunner().invoke(command, arguments).output
    assert "deny    its deny list has the request's header x-client; nothing is counted" in drawn
    assert "✗ denied with 403, in the shadow: only reported" in drawn
    assert "╰─▶ passes" in drawn
    said = json.loads(CliRunner().invoke(command, [*arguments, "--format", "json"]).output)
    assert (said["listed"], said["rules"][0]["listed"]) == (None, "header x-client")


def test_coroutines_and_fleets_ask_no_store() -> None:
    policy = rules(BLOCK.replace("rpu: 2", "rpu: 2, scope: global"))
    checks = AsyncGuard(policy, "redis://127.0.0.1:1?budget=10ms")

    async def main() -> list[Verdict]:
        verdicts = [
            await checks.check(asked(X_Client="bad")),
            await checks.peek(asked(X_Client="bad")),
        ]
        await checks.close()
        return verdicts

    for verdict in asyncio.run(main()):
        assert is_forbidden(verdict)
        assert not verdict.decisions[0].degraded


def test_reset_forgets_the_counters_of_a_denied_client() -> None:
    checks = guard()
    assert checks.check(asked())
    checks.reset(asked(X_Client="bad"), "all")
    assert [decision.remaining for decision in checks.peek(asked()).decisions] == [0, 4]
    checks.reset(asked(X_Client="bad"))
    assert [decision.remaining for decision in checks.check(asked()).decisions] == [1, 4]


def answered(answer: Answer) -> Answer:
    assert answer.status == 403
    assert answer.header("cache-control") == "no-store"
    for name in ("retry-after", "ratelimit", "ratelimit-policy", "x-ratelimit-limit"):
        assert answer.header(name) is None, name
    return answer


BAD = [("X-Client", "bad")]


def app(_: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b"hello"]


@pytest.mark.parametrize("headers", ["[ietf, retry-after, legacy]", "[]"])
def test_the_response(headers: str) -> None:
    policy = rules(f"response: {{headers: {headers}, status: 429}}\n{BLOCK}")
    for answer in (
        ask(Asgi(hello, policy), headers=BAD),
        ask_wsgi(Wsgi(app, policy), headers=BAD),
    ):
        answered(answer)
        assert answer.header("content-type") == "application/problem+json"
        assert json.loads(answer.body) == {
            "type": "about:blank",
            "title": "Forbidden",
            "status": 403,
            "detail": "Requests of this client are denied.",
        }
    html = ask(Asgi(hello, policy), headers=[*BAD, ("Accept", "text/html")])
    assert b"<h1>Forbidden</h1>" in html.body
    text = ask(Asgi(hello, policy), headers=[*BAD, ("Accept", "text/plain")])
    assert text.body == b"Requests of this client are denied.\n"
    assert ask(Asgi(hello, policy), method="HEAD", headers=BAD).body == b""


def test_a_body_of_its_own_and_a_function_that_answers() -> None:
    policy = rules(BLOCK.replace("rpu: 2", "rpu: 2, body: Go away., status: 429"))
    assert answered(ask(Asgi(hello, policy), headers=BAD)).body == b"Go away."

    def denied(_: Request, verdict: Verdict) -> Response:
        return Response(verdict.listed, 418)

    answer = ask(Asgi(hello, rules(), denied=denied), headers=BAD, peer="198.51.100.1")
    assert (answer.status, answer.body) == (418, b"header x-client")


def test_a_websocket_is_refused() -> None:
    async def main(**more: Any) -> list[dict[str, Any]]:
        socket = Socket(Asgi(hello, rules()), headers=[(b"x-client", b"bad")], **more)
        await socket.call
        return [dict(message) for message in socket.sent]

    assert asyncio.run(main()) == [{"type": "websocket.close", "code": 1008}]
    start, _ = asyncio.run(main(extensions={"websocket.http.response": {}}))
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 403)


def test_a_limit_on_a_route() -> None:
    limit = rate_limit("2/minute", deny={"ip": ["203.0.113.0/24"], "header X-Client": "bad"})

    @limit
    async def view(_: Any) -> Response:
        return Response("fine")

    @rate_limit("2/minute", deny={"header X-Client": "bad"})
    async def talk(_: Any) -> None:
        raise AssertionError

    site = Starlette(routes=[Route("/", view), WebSocketRoute("/talk", talk)])
    for around in (site, Asgi(site, rules(BLOCK.replace("deny:", "only:")))):
        answered(ask(around, headers=BAD))
        assert ask(around).status == 403
        assert ask(around, peer="198.51.100.1").status == 200

    async def main() -> list[Any]:
        socket = Socket(site, path="/talk", headers=[(b"x-client", b"bad")])
        await socket.call
        return socket.sent

    (closed,) = asyncio.run(main())
    assert (closed["type"], closed["code"], closed["reason"]) == (
        "websocket.close",
        1008,
        "Forbidden",
    )


def test_a_denial_by_a_route_is_charged_to_no_rule_of_the_middleware() -> None:
    @rate_limit("2/minute", deny={"header X-Client": "bad"})
    async def view(_: Any) -> Response:
        return Response("fine")

    middleware = Asgi(
        Starlette(routes=[Route("/", view)]),
        rules("url: /\nrules: [{name: all, unit: hour, rpu: 5}]"),
    )
    for _ in range(9):
        answered(ask(middleware, headers=BAD))
    told = ask(middleware).lines("ratelimit")
    assert told == ['"2/minute by ip";r=1;t=30', '"all";r=4;t=720']


def test_metrics_and_the_log_of_denials(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    checks = Guard(
        rules(),
        clock=FakeClock(BEGIN_US),
        observers=[PrometheusObserver(registry), DenialLog("plain")],
    )
    with caplog.at_level(logging.INFO, "diana.denials"):
        checks.check(asked("203.0.113.9", "/secret"))
    assert caplog.messages == [
        "GET '/secret' denied: the deny list of rule 'api' has its ip 203.0.113.0/24, client '=203.0.113.9'"
    ]
    value = registry.get_sample_value
    assert value("diana_requests_total", {"outcome": "denied"}) == 1
    assert value("diana_decisions_total", {"rule": "api", "outcome": "denied"}) == 1
    assert value("diana_decisions_total", {"rule": "all", "outcome": "denied"}) is None


def test_explain_says_which_list(tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(BLOCK)
    arguments = ["explain", str(file), "GET", "/", "-H", "X-Client: bad", "--peer", "::1"]
    drawn = CliRunner().invoke(command, arguments).output
    assert (
        "│     deny    its deny list has the request's header x-client; nothing is counted\n"
        in drawn
    )
    assert "│     says    ✗ denied with 403\n" in drawn
    assert "   all (line 6): another rule had denied already\n" in drawn
    told = json.loads(CliRunner().invoke(command, [*arguments, "--format", "json"]).output)
    assert (told["allowed"], told["listed"]) == (False, "header x-client")


def test_check_warns_of_clients_that_are_allowed_and_denied(tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(
        """
        limits:
          - url: /
            deny: {ip: [203.0.113.0/24], header X-Client: [bad, worse]}
            allow: {ip: [203.0.113.7, 10.0.0.0/8], header X-Client: [worse, good]}
            rules: [{actor: ip, unit: minute, rpu: 2}, {unit: hour, rpu: 5}]
        """
    )
    result = CliRunner().invoke(command, ["check", "--strict", str(file)])
    assert result.exit_code == 1
    told = [line for line in result.output.splitlines() if "deny wins" in line]
    assert [line.partition("rules[0]: ")[2] for line in told] == [
        "allow and deny both have ip 203.0.113.7/32, and deny wins; remove it from one of them",
        "allow and deny both have a value of header x-client, and deny wins; remove it from one of them",
    ]
    assert "worse" not in result.output
    file.write_text(file.read_text().replace("203.0.113.7, ", "").replace("worse, good", "good"))
    assert CliRunner().invoke(command, ["check", "--strict", str(file)]).exit_code == 0


def test_the_difference_names_it() -> None:
    (change,) = difference(
        rules("url: /\nrules: [{name: api, unit: minute, rpu: 9}]"),
        rules("url: /\ndeny: {ip: 203.0.113.9}\nrules: [{name: api, unit: minute, rpu: 9}]"),
    )
    assert str(change) == "~ api: deny none → ip (203.0.113.9/32)"


@pytest.mark.parametrize(
    ("deny", "message"),
    [
        ("{}", "the list is empty; write at least one actor, or remove the field"),
        (
            "[10.0.0.0/8]",
            "a list where a list of clients by actor should be; write its fields as name: value",
        ),
        (
            "{ip: 10.0.0.1/8}",
            "'10.0.0.1/8' is no network; write an address or a CIDR such as 10.0.0.0/8",
        ),
        ("{all: x}", "all is everybody together; write another actor"),
        ("{acount: x}", "'acount' is no actor; did you mean account?"),
        ("{ip: []}", "the list is empty; write at least one value, or remove the field"),
        ('{header X-Client: "${NOWHERE}"}', "${NOWHERE} is not set in the environment"),
    ],
)
def test_wrong_values(deny: str, message: str) -> None:
    for text in (
        f"url: /\ndeny: {deny}\nrules: [{{unit: minute, rpu: 9}}]",
        f"url: /\nrules: [{{unit: minute, rpu: 9, deny: {deny}}}]",
    ):
        with pytest.raises(ConfigError) as caught:
            rules_from_bytes(text.encode(), environ={})
        assert message in str(caught.value)


def test_where_it_does_not_belong() -> None:
    with pytest.raises(
        ConfigError, match="deny belongs to a url; put it into the list under limits:"
    ):
        rules("deny: {ip: 203.0.113.9}\nlimits: [{url: /, rules: [{unit: minute, rpu: 9}]}]")
    secret = b'url: /\ndeny: {header X-Client: "${TOKEN}"}\nrules: [{unit: minute, rpu: 9}]'
    with pytest.raises(ConfigError, match="a remote document cannot read"):
        rules_from_remote(secret, "remote")
