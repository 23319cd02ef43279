"""`identity: {account: code}`: the application finds it, and a program that does not is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from diana import AsyncGuard, ConfigError, Guard, Request
from diana.asgi import RateLimitMiddleware as Asgi
from diana.cli.main import diana as command
from diana.nginx.rules_json import refusals
from diana.rules.loading import load_rules, rules_from_bytes
from diana.wsgi import RateLimitMiddleware as Wsgi
from tests.servers.waiting import until
from tests.web import django_site  # noqa: F401  # sets Django up
from tests.web.calls import ask, hello, policy

from diana.django import RateLimitMiddleware as Django  # isort: skip
from django.core.checks import Error  # isort: skip
from django.test import override_settings  # isort: skip
from diana.django.apps import check_rules  # isort: skip

RULES = """
identity: {account: code, tier: Code}
limits:
  - {url: /, rules: [{name: api, actor: account, unit: minute, rpu: {free: 2, pro: 9, else: 1}}]}
"""
BY_HEADER = RULES.replace("account: code, tier: Code", "account: header X-User, tier: code")


def app(_: Any, start_response: Callable[..., Any]) -> list[bytes]:
    start_response("200 OK", [])
    return []


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def test_check_has_nothing_to_warn_of(tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(RULES)
    assert run("check", "--strict", str(file)).exit_code == 0
    file.write_text(RULES.replace("account: code, tier: Code", "trusted_proxies: [10.0.0.0/8]"))
    assert run("check", "--strict", str(file)).exit_code == 1


def test_the_functions_say_who_is_asking() -> None:
    limited = Asgi(hello, policy(RULES), account=lambda _: "alice", tier=lambda _: "pro")
    answers = [ask(limited) for _ in range(10)]
    assert [answer.status for answer in answers] == [200] * 9 + [503]


def test_what_no_function_finds_is_missing() -> None:
    guard = Guard(policy(RULES))
    verdict = guard.check(Request("GET", "/", {"X-Account-Id": "alice"}, peer="203.0.113.9"))
    assert verdict.decisions[0].key == "?203.0.113.9"
    assert verdict.decisions[0].limit == 1


SAID = r"account= must be a function of the request, because the rules say identity: \{account: code\} \(got none\); give one, or write"


@pytest.mark.parametrize("bring_guard", [False, True])
def test_a_middleware_without_the_function_does_not_start(bring_guard: bool) -> None:
    rules = policy(RULES)
    wsgi: Any = {"guard": Guard(rules)} if bring_guard else {"rules": rules}
    asgi: Any = {"guard": AsyncGuard(rules)} if bring_guard else {"rules": rules}
    with pytest.raises(ConfigError, match=SAID):
        Wsgi(app, **wsgi, tier=lambda _: None)
    limited = Asgi(hello, **asgi, tier=lambda _: None)
    with pytest.raises(ConfigError, match=SAID):
        ask(limited)
    with pytest.raises(ConfigError, match="tier= must be a function"):
        Wsgi(app, policy(RULES), account=lambda _: "alice")


def test_a_file_is_not_followed_by_a_middleware_that_does_not_start(tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(RULES)
    with pytest.raises(ConfigError, match=SAID):
        Wsgi(app, file)


def test_an_edit_that_needs_a_function_leaves_the_rules_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(BY_HEADER)
    limited = Wsgi(app, file, tier=lambda _: "free")
    version = limited.guard.policy.version
    file.write_text(RULES)
    until(lambda: limited.guard.problems, "the edit is refused")
    assert "account= must be a function" in limited.guard.problems[0].message
    assert limited.guard.policy.version == version
    limited.close()


def test_django_names_its_settings() -> None:
    with override_settings(
        MIDDLEWARE=["diana.django.RateLimitMiddleware"], DIANA_RULES=policy(RULES), DIANA_TIER=str
    ):
        with pytest.raises(ConfigError, match="DIANA_ACCOUNT must be a function of the request"):
            Django(lambda _: None)
        (error,) = check_rules(None)
        assert isinstance(error, Error)
        assert (error.id, error.msg[:14]) == ("diana.E003", "DIANA_ACCOUNT ")
        with override_settings(DIANA_ACCOUNT=str):
            assert check_rules(None) == []
            Django(lambda _: None).guard.close()


@pytest.mark.parametrize(
    ("arguments", "program"),
    [
        (["gateway", "--upstream", "http://127.0.0.1:1", "--bind", "127.0.0.1:0"], "the gateway"),
        (["demo", "--port", "0"], "diana demo"),
    ],
)
def test_programs_without_code_refuse_it(
    tmp_path: Path, arguments: list[str], program: str
) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(RULES)
    result = run(*arguments, "--rules", str(file))
    assert result.exit_code == 1
    said = f"identity.account must be found in the request, because {program} runs no code of the application (got code)"
    assert said in result.output


def test_nginx_refuses_it() -> None:
    reasons = list(refusals(rules_from_bytes(RULES.encode())))
    assert len(reasons) == 2
    assert "account: the application's code finds it (identity: {account: code})" in reasons[0]
    assert "write identity: {tier: header X-Plan, trust_tier: true}" in reasons[1]


def test_explain_takes_what_code_finds(tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(RULES)
    result = run("explain", str(file), "GET", "/", "--account", "alice", "--tier", "pro")
    assert "counted by the key '#" in result.output, "a digest, as of all accounts"
    assert "limit   9/minute" in result.output
    assert "is found by" not in result.output
    result = run("explain", str(file), "GET", "/")
    assert (
        "│  its account is found by the application's code; --account says which\n" in result.output
    )


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        ("{account: code x}", "'code x' is no actor"),
        ("{account: [code]}", "a list where a text should be; write one value"),
        ("{tier: code, trust_tier: true}", "trust_tier is for a tier that a request says itself"),
    ],
)
def test_wrong_values(identity: str, message: str) -> None:
    text = f"identity: {identity}\nlimits: [{{url: /, rules: [{{unit: minute, rpu: 1}}]}}]"
    with pytest.raises(ConfigError) as caught:
        rules_from_bytes(text.encode())
    assert message in str(caught.value)


def test_a_limit_on_a_route_counts_by_what_the_middleware_finds(tmp_path: Path) -> None:
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    from diana.starlette import rate_limit

    @rate_limit("2/minute", actor="account")
    async def view(_: Any) -> Response:
        return Response()

    file = tmp_path / "diana.yaml"
    file.write_text("identity: {account: code}\nlimits: [{url: /no, rules: [{unit: day, rpu: 1}]}]")
    users = iter(["alice", "alice", "bob", "alice"])
    limited = Asgi(
        Starlette(routes=[Route("/", view)]), load_rules(file), account=lambda _: next(users)
    )
    assert [ask(limited).status for _ in range(4)] == [200, 200, 200, 429]
    asyncio.run(limited.guard.close())
