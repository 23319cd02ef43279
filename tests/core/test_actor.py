"""Who is asking, when code has found it out already."""

from __future__ import annotations

import logging
import threading

import pytest

from diana import Guard, Request, Verdict
from diana.core.request import Contradiction
from diana.rules.loading import rules_from_bytes

RULES = """
identity: {account: header X-User, device: cookie device}
limits:
  - url: /
    rules:
      - {name: both, actor: [account, device], unit: hour, rpu: 1}
"""


def guard(text: str = RULES) -> Guard:
    return Guard(rules_from_bytes(text.encode()))


def asked(
    guard: Guard, told: dict[str, str | Exception | None] | None, user: str = "ann"
) -> Verdict:
    headers = {"X-User": user, "Cookie": "device=phone"}
    request = Request("GET", "/", headers, peer="203.0.113.9")
    request.identities = told
    return guard.check(request)


def key(verdict: Verdict) -> str:
    return verdict.decisions[0].key


def test_without_code_the_file_says_where_to_look() -> None:
    some = guard()
    assert Request().identities is None
    assert key(asked(some, None)) == key(asked(some, {})) != key(asked(some, None, user="bob"))


def test_what_code_says_wins_over_the_file() -> None:
    some = guard()
    told = key(asked(some, {"account": "17"}))
    assert told == key(asked(some, {"account": "17"}, user="bob"))
    assert told != key(asked(some, {"account": "18"}))
    assert told == key(asked(some, {"account": "17", "device": "phone"}))  # the cookie says so too
    assert told != key(asked(some, {"account": "17", "device": "tablet"}))


def test_nobody_is_nobody_whatever_the_request_says() -> None:
    verdict = asked(guard(), {"account": None})
    assert key(verdict) == "?203.0.113.9"


def test_what_could_not_be_found_out_is_the_requests_problem(
    caplog: pytest.LogCaptureFixture,
) -> None:
    some = guard()
    with caplog.at_level(logging.WARNING, "diana"):
        for _ in range(3):
            assert key(asked(some, {"account": LookupError("no session")})) == "?203.0.113.9"
    assert some.identity_errors == 3
    # Of this thread: that of a store which an earlier test has left behind may have to say something, too.
    assert sum(record.thread == threading.get_ident() for record in caplog.records) == 1


def test_a_contradiction_stays_one() -> None:
    some = guard(RULES.replace("unit: hour", "missing: skip, unit: hour"))
    assert key(asked(some, {"account": Contradiction()})) == "?"
    assert some.identity_errors == 0


def test_a_rule_by_something_else_does_not_care() -> None:
    some = guard("url: /\nrules: [{actor: ip, unit: hour, rpu: 1}]")
    assert key(asked(some, {"account": LookupError()})) == "=203.0.113.9"
