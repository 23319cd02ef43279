"""Common mistakes, and what is said about each: every message names what to write instead."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
from click.testing import CliRunner

from diana import (
    AsyncGuard,
    ConfigError,
    Guard,
    Limiter,
    Request,
)
from diana.cli.main import diana as diana_command
from diana.rules.loading import rules_from_bytes
from diana.stores.zone.zone_file import path_of_zone

CLASSIC = "url: /\nrules: [{name: a, actor: ip, unit: minute, rpu: 5}]\n"
RULES = "limits: [{url: /, rules: [{unit: minute, rpu: 5}]}]\n"


def in_rule(fields: str) -> str:
    return f"limits: [{{url: /, rules: [{{{fields}}}]}}]\n"


def with_url(url: str) -> str:
    return f"limits: [{{url: '{url}', rules: [{{unit: minute, rpu: 5}}]}}]\n"


IN_FILES: list[tuple[str, str]] = [
    # the file; its only mistake
    (
        RULES + 'response: {status: "429"}',
        "rules.yaml:2:20: response.status: status must be a number (got '429', a text in quotes); write status: 429",
    ),
    (
        in_rule("unit: minute, rpu: '5'"),
        "rules.yaml:1:47: limits[0].rules[0].rpu: rpu must be a number (got '5', a text in quotes); write rpu: 5",
    ),
    (
        RULES + "response: 429",
        "rules.yaml:2:11: response: response must be a mapping (got 429); write response: {status: 429}",
    ),
    (
        RULES + "store: localhost:6379",
        "rules.yaml:2:8: store: store must be a URL with a scheme (got 'localhost:6379'); write redis://localhost:6379",
    ),
    (
        RULES + "store: redis:/localhost",
        "rules.yaml:2:8: store: store must be a URL with a scheme (got 'redis:/localhost'); write redis://localhost",
    ),
    (
        RULES + "store: redis:localhost:6379/0",
        "rules.yaml:2:8: store: store must be a URL with a scheme (got 'redis:localhost:6379/0'); write redis://localhost:6379/0",
    ),
    (
        RULES + "store: /run/redis.sock",
        "rules.yaml:2:8: store: store must be a URL with a scheme (got '/run/redis.sock'); write unix:///run/redis.sock",
    ),
    (
        RULES + "local_store: shared",
        "rules.yaml:2:14: local_store: local_store must be a URL with a scheme (got 'shared'); write shared://NAME",
    ),
    (
        RULES + "store: redis.internal",
        "rules.yaml:2:8: store: store must be a URL with a scheme (got 'redis.internal'); "
        "write one such as redis://localhost:6379 or memory://",
    ),
    (  # it may hold a password
        RULES + "store: redis:/:s3cret@localhost",
        "rules.yaml:2:8: store: store must be a URL with a scheme; write redis://USER:PASSWORD@HOST:6379",
    ),
    (
        in_rule("actor: 'header:X-Api-Key', unit: minute, rpu: 5"),
        "rules.yaml:1:35: limits[0].rules[0].actor: an actor must be written with a space (got 'header:X-Api-Key'); "
        "write header X-Api-Key",
    ),
    (
        in_rule("actor: query a + ip, unit: minute, rpu: 5"),
        "rules.yaml:1:35: limits[0].rules[0].actor: an actor must be one of a request's values (got 'query a + ip'); "
        "write a combination as a list, [query a, ip]",
    ),
    (
        in_rule("actor: header=X-Api-Key, unit: minute, rpu: 5"),
        "rules.yaml:1:35: limits[0].rules[0].actor: an actor must be written with a space (got 'header=X-Api-Key'); "
        "write header X-Api-Key",
    ),
    (
        in_rule("actor: 'query(sku)', unit: minute, rpu: 5"),
        "rules.yaml:1:35: limits[0].rules[0].actor: an actor must be written with a space (got 'query(sku)'); write query sku",
    ),
    (
        in_rule("limit: 100/minute"),
        "rules.yaml:1:35: limits[0].rules[0].limit: limit must be written as rpu and unit (got '100/minute'); "
        "write rpu: 100, unit: minute",
    ),
    (
        in_rule("actor: ip, rate: 5 per 30s"),
        "rules.yaml:1:45: limits[0].rules[0].rate: rate must be written as rpu and unit (got '5 per 30s'); write rpu: 5, unit: 30s",
    ),
    (
        in_rule("limit: 100"),
        "rules.yaml:1:35: limits[0].rules[0].limit: limit must be written as rpu and unit (got '100'); "
        "write rpu: 100 and a unit such as unit: minute",
    ),
    (
        in_rule("limit: 5 at once"),
        "rules.yaml:1:35: limits[0].rules[0].limit: limit must be written as algo and most (got '5 at once'); write algo: C, most: 5",
    ),
    (
        in_rule("limit: 5/second; 100/hour"),
        "rules.yaml:1:35: limits[0].rules[0].limit: limit must be written as rpu and unit (got '5/second; 100/hour'); "
        "write a rule for each: {rpu: 5, unit: second} and {rpu: 100, unit: hour}",
    ),
    (
        in_rule("rpu: 100/minute"),
        "rules.yaml:1:33: limits[0].rules[0].rpu: rpu must be a number (got '100/minute'); write rpu: 100, unit: minute",
    ),
    (
        with_url("^/a/.*$"),
        "rules.yaml:1:16: limits[0].url: url must be a path, not a regular expression (got '^/a/.*$'); "
        "write /a, which covers all paths below it",
    ),
    (
        with_url(r"/users/\d+/orders/?"),
        "rules.yaml:1:16: limits[0].url: url must be a path, not a regular expression (got '/users/\\\\d+/orders/?'); "
        "write /users/*/orders, which covers all paths below it",
    ),
    (
        with_url("^.*$"),
        "rules.yaml:1:16: limits[0].url: url must be a path, not a regular expression (got '^.*$'); "
        "write /, which covers all paths below it",
    ),
]


@pytest.mark.parametrize(("text", "said"), IN_FILES)
def test_a_mistake_in_a_file(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rules_from_bytes(text.encode(), "rules.yaml")
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ("moving window", "SL"),
        ("Sliding  Window Log", "SL"),
        ("fixed window", "W"),
        ("window", "W"),
    ],
)
def test_an_algorithm_by_the_name_that_others_use(written: str, code: str) -> None:
    policy = rules_from_bytes(in_rule(f"unit: minute, rpu: 5, algo: {written}").encode())
    assert policy.rules[0].meter.algorithm.code == code
    assert Limiter("5/minute", algo=written).take("a").allowed


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("moving-window", "moving window (SL)"),
        ("sliding_window_log", "sliding window log (SL)"),
        ("fixed-window", "fixed window (W)"),
        ("token-bucket", "token bucket"),
    ],
)
def test_an_algorithm_with_dashes_gets_the_one_that_was_meant(written: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Limiter("5/minute", algo=written)
    assert str(caught.value).startswith(f"{written!r} is no algorithm; did you mean {meant}? write")


POLICY = rules_from_bytes(RULES.encode())


class Foreign:
    def __repr__(self) -> str:
        return "<Foreign>"


IN_CODE: list[tuple[str, Callable[[], Any], str]] = [
    (
        "a guard of a path",
        lambda: Guard("diana.yaml"),  # type: ignore[arg-type]
        "Guard: policy must be a Policy (got 'diana.yaml'); write Guard.from_file('diana.yaml')",
    ),
    (
        "a guard of a path",
        lambda: AsyncGuard(Path("diana.yaml")),  # type: ignore[arg-type]
        "AsyncGuard: policy must be a Policy (got 'diana.yaml'); write AsyncGuard.from_file('diana.yaml')",
    ),
    (
        "a guard of a mapping",
        lambda: Guard({"limits": []}),  # type: ignore[arg-type]
        "Guard: policy must be a Policy (got a mapping); write Guard(load_rules(...)) with the mapping in it",
    ),
    (
        "a guard of a number",
        lambda: Guard(5),  # type: ignore[arg-type]
        'Guard: policy must be a Policy (got 5); write Guard.from_file("diana.yaml")',
    ),
    (
        "check of a path",
        lambda: Guard(POLICY).check("/login"),  # type: ignore[arg-type]
        "request must be a Request (got '/login'); write Request(\"GET\", '/login')",
    ),
    (
        "wait of a path",
        lambda: Guard(POLICY).wait("/"),  # type: ignore[arg-type]
        "request must be a Request (got '/'); write Request(\"GET\", '/')",
    ),
    (
        "peek of another framework's request",
        lambda: Guard(POLICY).peek(Foreign()),  # type: ignore[arg-type]
        "request must be a Request (got <Foreign>); write Request(method, path, headers, query, peer)",
    ),
    (
        "reset of a path",
        lambda: Guard(POLICY).reset("/"),  # type: ignore[arg-type]
        "request must be a Request (got '/'); write Request(\"GET\", '/')",
    ),
    (
        "check of coroutines",
        lambda: asyncio.run(AsyncGuard(POLICY).check("/")),  # type: ignore[arg-type]
        "request must be a Request (got '/'); write Request(\"GET\", '/')",
    ),
    (
        "match",
        lambda: POLICY.match(None),  # type: ignore[arg-type]
        "request must be a Request (got None); write Request(method, path, headers, query, peer)",
    ),
    (
        "a store without a scheme",
        lambda: Limiter("1/minute", store="localhost:6379"),
        "store must be a URL with a scheme (got 'localhost:6379'); write redis://localhost:6379",
    ),
    (
        "a secret in what is no URL",
        lambda: Guard(POLICY, "redis:/:s3cret@localhost"),
        "store must be a URL with a scheme; write redis://USER:PASSWORD@HOST:6379",
    ),
    (
        "observers that are no list",
        lambda: Guard(POLICY, observers="prometheus"),
        "observers= must be a list (got 'prometheus'); write observers=['prometheus']",
    ),
]


@pytest.mark.parametrize(
    ("mistake", "said"), [row[1:] for row in IN_CODE], ids=[row[0] for row in IN_CODE]
)
def test_a_mistake_in_code(mistake: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        mistake()
    assert str(caught.value) == said


def test_a_property_of_a_request_that_raises_is_not_taken_for_a_wrong_type() -> None:
    class Lazy(Request):
        @property
        def mount(self) -> str:
            raise AttributeError("its own mistake")

        @mount.setter
        def mount(self, value: str) -> None:
            pass

    with pytest.raises(AttributeError, match="its own mistake"):
        Guard(POLICY).check(Lazy())


def test_an_error_keeps_nothing_alive_that_it_passed_through() -> None:
    class Local:
        pass

    def fail() -> ref[Local]:
        local = Local()
        with suppress(ConfigError):
            Limiter("5 a minute")
        return ref(local)

    gc.disable()
    try:
        assert fail()() is None
    finally:
        gc.enable()


IN_COMMANDS: list[tuple[str, str, str]] = [
    # the command; its exit code; the end of what it says
    (
        "explain rules.yaml / GET",
        "2",
        "METHOD must be a method of HTTP, such as GET (got '/'); METHOD comes before URL: diana explain rules.yaml GET /",
    ),
    (
        "explain rules.yaml GET / --peer localhost",
        "2",
        "--peer must be an IP address (got 'localhost'); write one such as 127.0.0.1",
    ),
    (
        "gateway --rules rules.yaml --sample --upstream http://x",
        "2",
        "write --upstream URL or --sample, not both",
    ),
    (
        "gateway --rules rules.yaml",
        "2",
        "write --upstream URL, such as http://127.0.0.1:9000, or --sample",
    ),
    (
        "peek shared://nosuch-zone a 1.2.3.4",
        "1",
        "there is no zone nosuch-zone: {zone} does not exist",
    ),
    (
        "publish-rules rules.yaml --once --store localhost:6379",
        "1",
        "store must be a URL with a scheme (got 'localhost:6379'); write redis://localhost:6379",
    ),
    ("check -", "0", "to tell clients to slow down"),
]


@pytest.mark.parametrize(("command", "code", "said"), IN_COMMANDS)
def test_a_mistake_in_a_command(
    command: str, code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rules.yaml").write_text(CLASSIC)
    result = CliRunner().invoke(diana_command, command.split(), input=CLASSIC)
    end = said.replace("{zone}", str(path_of_zone("nosuch-zone")))
    assert (str(result.exit_code), result.output.rstrip().endswith(end)) == (code, True), (
        result.output
    )


def test_a_missing_file_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(diana_command, ["check", "nosuch.yaml"], color=True)
    assert result.output == (
        f"nosuch.yaml: cannot be read: No such file or directory (as {tmp_path}/nosuch.yaml)\n"
        "\x1b[31mnosuch.yaml: 1 mistake\x1b[0m\n"
    )
