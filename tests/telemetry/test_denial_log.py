"""`denial_log`: a bounded log of denied requests."""

from __future__ import annotations

import logging

import pytest

from diana import ConfigError, Guard, Request
from diana.rules.loading import rules_from_bytes
from diana.telemetry.denial_log import LINES, MOST_RULES, PERIOD_SECONDS, DenialLog
from diana.testing import FakeClock

RULES = b"""
limits:
  - url: /
    rules: [{name: per key, actor: header X-Api-Key, unit: minute, rpu: 1}]
"""
HOSTILE = "/a'b\"\x1b[31m\n\u2028" + "x" * 300


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def asked(path: str = "/search", key: str = "alice") -> Request:
    return Request("GET", path, [("X-Api-Key", key)])


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "diana.denials"]


def test_a_denial_names_request_rule_limit_retry_and_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "diana.denials")
    clock = FakeClock()
    for clients in ("digest", "plain", "none"):
        guard = Guard(rules_from_bytes(RULES), clock=clock, observers=[DenialLog(clients)])
        assert guard.check(asked())
        assert not guard.check(asked())
    line = "GET '/search' denied by rule 'per key' (1/minute by header x-api-key), retry after 60 s"
    digest, plain, none = messages(caplog)
    assert digest.startswith(f"{line}, client digest ")
    assert "alice" not in digest
    assert plain.startswith(f"{line}, client '")
    assert none == line


def test_what_a_client_sent_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "diana.denials")
    guard = Guard(rules_from_bytes(RULES), clock=FakeClock(), observers=[DenialLog("plain")])
    for _ in range(2):
        guard.check(asked(HOSTILE, HOSTILE))
    (line,) = messages(caplog)
    assert line.isprintable()
    assert len(line) < 600


def test_lines_are_bounded_and_what_is_left_out_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "diana.denials")
    time = Time()
    guard = Guard(rules_from_bytes(RULES), clock=FakeClock(), observers=[DenialLog(clock=time)])
    for _ in range(1 + LINES + 1_204):
        guard.check(asked())
    assert len(messages(caplog)) == LINES
    time.now += PERIOD_SECONDS
    guard.check(asked())
    assert messages(caplog)[LINES] == "1,204 more denials were not logged in 10 s"
    assert len(messages(caplog)) == LINES + 2


def test_each_rule_has_a_line_when_others_have_used_them_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "diana.denials")
    blocks = ", ".join(
        f"{{url: /{number}, rules: [{{name: r{number}, unit: day, rpu: 1}}]}}"
        for number in range(MOST_RULES + 20)
    )
    observer = DenialLog(clock=Time())
    guard = Guard(
        rules_from_bytes(f"limits: [{blocks}]".encode()), clock=FakeClock(), observers=[observer]
    )
    for number in range(MOST_RULES + 20):
        for _ in range(3):
            guard.check(asked(f"/{number}"))
    assert 3 * LINES < len(messages(caplog)) <= LINES + MOST_RULES


def test_a_wrong_word_for_clients_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"clients must be one of digest, plain, none \(got 'all'\)"
    ):
        DenialLog("all")
