"""The access log: one line per request, whatever a client sends."""

from __future__ import annotations

import asyncio
import io
import json
from ipaddress import ip_network
from typing import Any

import pytest

from diana import Guard, Request, Verdict
from diana.core.client_address import Proxies
from diana.gateway.access_log import AccessLog, quoted
from diana.rules.loading import rules_from_bytes
from diana.testing import FakeClock
from diana.web.admission import VERDICT

HOSTILE = [
    'x" 200 0 0.1ms "fake',
    "a\r\n2026-11-16T00:00:00Z 1.2.3.4 fake",
    "\x1b[31mred\x1b[0m",
    "\x9b31mred",
    "back\\slash",
    "\x7f\x00\x08",
    "caf\u00e9",
    "y" * 100_000,
]


def logged(
    headers: list[tuple[str, str]],
    peer: str = "203.0.113.9",
    *,
    fails: bool = False,
    verdict: Verdict | None = None,
) -> str:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello", "more_body": True})
        if fails:
            raise OSError
        await send({"type": "http.response.body", "body": b"!"})

    async def nothing(*_: Any) -> Any:
        return None

    written = io.StringIO()
    log = AccessLog(app, written, Proxies([ip_network("10.0.0.0/8")]))
    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "http_version": "1.1",
        "raw_path": b"/a",
        "query_string": b"q=1",
        "client": (peer, 1),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
    }

    if verdict is not None:
        scope[VERDICT] = verdict

    async def play() -> None:
        try:
            await log(scope, nothing, nothing)
        except OSError:
            assert fails
        log.write()

    asyncio.run(play())
    return written.getvalue()


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_values_stay_in_their_quotes(value: str) -> None:
    line = logged([("user-agent", value)])
    assert line.endswith("\n")
    body = line[:-1]
    assert body.isprintable()
    assert body.isascii()
    start, _, agent = body.partition("ms ")
    assert start.split(" ", 1)[1].startswith('203.0.113.9 "GET /a?q=1 HTTP/1.1" 200 6 ')
    shown = value if len(value) <= 1_000 else value[:997] + "..."
    assert agent.endswith(" -")
    assert json.loads(agent.removesuffix(" -")) == shown


@pytest.mark.parametrize(
    ("peer", "said", "client"),
    [
        ("203.0.113.9", "1.2.3.4", "203.0.113.9"),
        ("10.0.0.1", "1.2.3.4, 10.0.0.2", "1.2.3.4"),
        ("10.0.0.1", "1.2.3.4, nonsense\x1b", "10.0.0.1"),
        ("10.0.0.1", "2001:db8::1", "2001:db8::1"),
    ],
)
def test_the_client_is_who_the_rules_take_it_for(peer: str, said: str, client: str) -> None:
    assert logged([("x-forwarded-for", said)], peer).split(" ")[1] == client


def test_an_answer_that_broke_off_is_marked() -> None:
    assert logged([], fails=True).endswith('ms "-" - aborted\n')


def test_the_outcome_and_the_rule_that_denied_are_named() -> None:
    rules = rules_from_bytes(
        b"limits: [{url: /, rules: [{name: 'say \"no\"', unit: day, rpu: 1}]}]"
    )
    guard = Guard(rules, clock=FakeClock())
    request = Request("GET", "/", [])
    assert logged([], verdict=guard.check(request)).endswith('"-" allowed\n')
    assert logged([], verdict=guard.check(request)).endswith('"-" denied "say \\"no\\""\n')


def test_ordinary_values_are_only_quoted() -> None:
    assert quoted("curl/8.5.0 (x; y)") == '"curl/8.5.0 (x; y)"'
