"""What a client is told, checked with a parser of structured fields that is not ours."""

from __future__ import annotations

import json
from typing import Any

import http_sf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diana import Guard, Request, Verdict
from diana.core.matched_rules import MatchedRules
from diana.responses.denial_response import DenialResponse, Fields, ResponseBuilder, detail_of
from diana.responses.ratelimit_headers import policy_name, quoted
from diana.testing import FakeClock
from tests.web.calls import policy

BEGIN_US = 1_700_000_000_000_000
TWO = """
limits:
  - url: /
    rules:
      - {name: site, unit: minute, rpu: 100}
      - {name: you, actor: ip, unit: second, rpu: 2, burst: 3}
"""


def value(fields: Fields, name: str) -> str | None:
    lines = [line for field, line in fields if field == name.encode()]
    assert len(lines) <= 1
    return lines[0].decode("ascii") if lines else None


def parsed(fields: Fields, name: str) -> list[Any]:
    line = value(fields, name)
    assert line is not None
    return items(line)


def items(line: str) -> list[Any]:
    read: Any = http_sf.parse(line.encode("ascii"), tltype="list")
    return list(read)


class Site:
    """Rules on a clock, and their answers."""

    def __init__(self, text: str) -> None:
        self.clock = FakeClock(BEGIN_US)
        rules = policy(text)
        self.guard = Guard(rules, clock=self.clock)
        self.answers = ResponseBuilder(rules)

    def ask(self, **headers: str) -> Verdict:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.guard.check(Request("GET", "/", named, peer="203.0.113.9"))

    def denied(self, **headers: str) -> DenialResponse:
        for _ in range(1_000):
            verdict = self.ask(**headers)
            if not verdict:
                return self.answers.denial(verdict)
        raise AssertionError("nothing is ever denied")


def test_an_allowed_answer_tells_every_rule() -> None:
    site = Site(TWO)
    fields = site.answers.fields(site.ask())
    assert parsed(fields, "ratelimit-policy") == [
        ("site", {"q": 100, "w": 60}),
        ("you", {"q": 2, "w": 1, "diana-burst": 3}),
    ]
    assert parsed(fields, "ratelimit") == [("site", {"r": 99, "t": 1}), ("you", {"r": 2, "t": 1})]
    assert value(fields, "retry-after") is None
    assert value(fields, "cache-control") is None


def test_a_denial_tells_when_to_come_back() -> None:
    site = Site(TWO)
    status, headers, _ = site.denied()
    assert status == 503
    assert value(headers, "retry-after") == "1"
    assert value(headers, "cache-control") == "no-store"
    assert [name for name, _ in parsed(headers, "ratelimit-policy")] == ["site", "you"]
    assert parsed(headers, "ratelimit") == [("you", {"r": 0, "t": 1})]


@pytest.mark.parametrize("algo", ["TB", "W", "SW", "SL"])
@pytest.mark.parametrize(("rpu", "unit"), [(1, "second"), (3, "7s"), (2, "minute"), (7, "2500ms")])
@pytest.mark.parametrize("late_us", [0, 1, 499_999, 999_999])
def test_who_waits_as_told_passes(algo: str, rpu: int, unit: str, late_us: int) -> None:
    rule = f"{{unit: {unit}, rpu: {rpu}, algo: {algo}}}"
    site = Site(f"url: /\nrules: [{rule}]")
    site.clock.set(BEGIN_US + late_us)
    retry = value(site.denied().headers, "retry-after")
    assert retry is not None
    assert int(retry) >= 1
    site.clock.advance(int(retry))
    assert site.ask()


def test_of_several_denials_the_longest_wait_is_told() -> None:
    site = Site(
        "url: /\nrules: [{name: a, unit: second, rpu: 1}, {name: b, unit: hour, rpu: 1, algo: SL}]"
    )
    _, headers, body = site.denied()
    assert value(headers, "retry-after") == "3600"
    assert parsed(headers, "ratelimit") == [("a", {"r": 0, "t": 1}), ("b", {"r": 0, "t": 3600})]
    assert json.loads(body)["violated-policies"] == ["a", "b"]


def test_what_can_never_pass_is_not_told_to_come_back() -> None:
    site = Site("url: /\nrules: [{name: who, actor: account, unit: second, rpu: 1, missing: deny}]")
    status, headers, body = site.denied()
    assert status == 503
    assert value(headers, "retry-after") is None
    assert parsed(headers, "ratelimit") == [("who", {"r": 0})]
    assert "retry_after" not in json.loads(body)


def test_rules_in_the_shadow_are_not_told() -> None:
    site = Site(
        "url: /\nrules: [{name: seen, unit: second, rpu: 9}, {name: hid, unit: second, rpu: 1, mode: shadow}]"
    )
    fields = site.answers.fields(site.ask())
    assert [name for name, _ in parsed(fields, "ratelimit")] == ["seen"]
    headers = site.denied().headers
    assert b"hid" not in b"".join(line for _, line in headers)
    only = Site("url: /\nrules: [{unit: second, rpu: 1, mode: shadow}]")
    assert only.answers.fields(only.ask()) == []


def test_without_rules_nothing_is_told() -> None:
    site = Site("url: /elsewhere\nrules: [{unit: second, rpu: 1}]")
    assert site.answers.fields(site.ask()) == []


def test_the_older_fields_tell_the_tightest_rule() -> None:
    site = Site("response: {headers: [legacy]}\n" + TWO.lstrip())
    assert site.answers.fields(site.ask()) == [
        (b"x-ratelimit-limit", b"3"),
        (b"x-ratelimit-remaining", b"2"),
        (b"x-ratelimit-reset", b"1"),
    ]
    headers = site.denied().headers
    assert value(headers, "x-ratelimit-remaining") == "0"
    assert value(headers, "x-ratelimit-reset") == "2"  # 3 in the bucket, 2 leak per second
    assert value(headers, "retry-after") is None
    assert value(headers, "ratelimit") is None


def test_only_when_to_come_back_if_nothing_else_is_wanted() -> None:
    site = Site("response: {headers: [retry-after]}\n" + TWO.lstrip())
    assert site.answers.fields(site.ask()) == []
    names = {name for name, _ in site.denied().headers}
    assert names == {b"cache-control", b"content-type", b"content-length", b"retry-after"}


def test_a_unit_of_no_whole_seconds_has_no_window_in_the_policy() -> None:
    site = Site("url: /\nrules: [{name: quick, unit: 1500ms, rpu: 3}]")
    assert parsed(site.answers.fields(site.ask()), "ratelimit-policy") == [("quick", {"q": 3})]


def test_numbers_stay_within_what_structured_fields_hold() -> None:
    site = Site("url: /\nrules: [{name: big, unit: day, rpu: 1000000000000}]")
    fields = site.answers.fields(site.ask())
    assert parsed(fields, "ratelimit-policy")[0][1]["q"] == 10**12
    assert parsed(fields, "ratelimit")[0][1]["r"] == 10**12 - 1


@settings(max_examples=300)
@given(st.text(), st.text())
def test_any_name_is_a_structured_field_of_its_own(one: str, other: str) -> None:
    ((name, _),) = items(quoted(one))
    assert name == policy_name(one)
    if "%" not in one + other:
        assert (quoted(one) == quoted(other)) == (one == other)


@pytest.mark.parametrize(
    "name", ['say "hi"', "back\\slash", "café", "a, b;q=1", "%41", "ok\\", "日本", '"']
)
def test_names_from_a_file(name: str) -> None:
    site = Site(f"url: /\nrules: [{{name: {json.dumps(name)}, unit: second, rpu: 1}}]")
    fields = site.answers.fields(site.ask())
    assert parsed(fields, "ratelimit") == [(policy_name(name), {"r": 0, "t": 1})]
    assert json.loads(site.denied().body)["violated-policies"] == [policy_name(name)]


def test_the_body_is_a_problem_by_default() -> None:
    site = Site("response: {status: 429}\n" + TWO.lstrip())
    status, headers, body = site.denied()
    assert value(headers, "content-type") == "application/problem+json"
    assert value(headers, "content-length") == str(len(body))
    assert json.loads(body) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Too Many Requests",
        "status": 429,
        "detail": "Too many requests. Please try again in 1 second.",
        "retry_after": 1,
        "violated-policies": ["you"],
    }
    assert status == 429
    assert b"203.0.113.9" not in body


def test_the_body_is_text_or_a_page_for_those_who_like_that() -> None:
    _, headers, body = Site(TWO).denied(accept="text/plain")
    assert value(headers, "content-type") == "text/plain; charset=utf-8"
    assert body == b"Too many requests. Please try again in 1 second.\n"
    _, headers, body = Site(TWO).denied(accept="text/html")
    assert value(headers, "content-type") == "text/html; charset=utf-8"
    assert b"<h1>Too Many Requests</h1>" in body


@pytest.mark.parametrize("status", [503, 429, 418, 599, 200])
def test_title_and_detail_of_a_problem_agree_whatever_the_status(status: int) -> None:
    answered, _, body = Site(f"response: {{status: {status}}}\n{TWO.lstrip()}").denied()
    problem = json.loads(body)
    assert (answered, problem["status"]) == (status, status)
    assert problem["title"] == "Too Many Requests"
    assert problem["detail"].startswith("Too many requests.")


BODIES = """
response: {status: 429, body: {text: later, html: <p>later</p>}}
limits:
  - url: /
    rules:
      - {name: site, unit: hour, rpu: 2}
      - {name: you, actor: header X-You, unit: hour, rpu: 1, status: 200, body: {json: '{"queue": true}'}}
"""


def test_bodies_of_the_file_and_of_a_rule() -> None:
    site = Site(BODIES)
    status, headers, body = site.denied(x_you="alice", accept="text/html")
    assert (status, body) == (200, b'{"queue": true}')
    assert value(headers, "content-type") == "application/json"
    assert value(headers, "retry-after") == "3600"
    assert site.ask(x_you="bob")
    status, headers, body = site.denied(x_you="carol", accept="text/html")
    assert (status, body) == (429, b"<p>later</p>")
    assert site.denied(x_you="carol", accept="application/json").body == b"later"


def test_a_body_in_any_language() -> None:
    site = Site("response: {body: später}\n" + TWO.lstrip())
    _, headers, body = site.denied()
    assert body.decode() == "später"
    assert value(headers, "content-length") == "7"


def test_a_status_that_has_no_body_gets_none() -> None:
    site = Site("response: {status: 204}\n" + TWO.lstrip())
    status, headers, body = site.denied()
    assert (status, body) == (204, b"")
    assert value(headers, "content-length") is None


def test_a_status_without_a_name() -> None:
    site = Site("response: {status: 599}\n" + TWO.lstrip())
    assert json.loads(site.denied().body)["title"] == "Too Many Requests"


def test_a_verdict_of_former_rules_can_still_be_answered() -> None:
    site = Site(TWO)
    later = ResponseBuilder(policy("url: /\nrules: [{name: other, unit: second, rpu: 5}]"))
    assert parsed(later.fields(site.ask()), "ratelimit")[0][0] == "site"
    assert [name for name, _ in parsed(_denial(site, later).headers, "ratelimit")] == ["you"]


def _denial(site: Site, answers: ResponseBuilder) -> DenialResponse:
    while verdict := site.ask():
        pass
    return answers.denial(verdict)


def test_what_is_said_of_rules_is_composed_once_for_all_paths_they_cover() -> None:
    site = Site(TWO)
    first, second = (site.guard.check(Request(path=path)) for path in ("/a", "/b/c"))
    assert site.answers.fields(first)
    assert first.match is second.match
    assert first.match.announcement is not None


def test_which_denials_somebody_has_written_words_for() -> None:
    for text, has_words in ((TWO, False), (BODIES, True)):
        site = Site(text)
        while verdict := site.ask():
            pass
        assert site.answers.has_words_for(verdict) is has_words


def test_a_large_body_is_kept_once() -> None:
    site = Site(f"response: {{body: {'x' * 100_000}}}\n" + TWO.lstrip())
    while verdict := site.ask():
        pass
    rule, (*_, decision) = verdict.denied_by, verdict.decisions
    assert rule is not None
    bodies = set()
    for seconds in range(1, 100):
        waits = decision._replace(outcome=(False, 0, seconds * 1_000_000, 0, 0))
        denial = site.answers.denial(
            verdict._replace(match=MatchedRules((rule,)), decisions=(waits,))
        )
        assert value(denial.headers, "retry-after") == str(seconds)
        bodies.add(id(denial.body))
    assert len(bodies) == 1


@pytest.mark.parametrize(
    ("rule", "seconds"),
    [
        ("rpu: 10, unit: minute", [6] * 10),  # a token every six seconds
        ("rpu: 7, unit: minute", [9] * 7),
        ("rpu: 10, unit: minute, burst: 3", [6] * 3),
        ("rpu: 10, unit: minute, algo: LB, burst: 2, nodelay: true", [6] * 3),
        ("rpu: 3, unit: minute, algo: LB, max_wait: 30s", [10, 10]),
        ("rpu: 3, unit: minute, algo: W", [20] * 3),  # until the window ends: it began 40 s ago
        ("rpu: 3, unit: minute, algo: W, align: first", [60] * 3),
    ],
)
def test_the_seconds_of_an_allowed_answer_are_until_more_quota_is_there(
    rule: str, seconds: list[int]
) -> None:
    site = Site(f"url: /\nrules: [{{name: n, {rule}}}]")
    site.clock.set(1_700_000_000_000_000 // 60_000_000 * 60_000_000 + 40_000_000)
    told = [parsed(site.answers.fields(site.ask()), "ratelimit")[0][1]["t"] for _ in seconds]
    assert told == seconds


def test_more_quota_is_there_when_the_seconds_are_over() -> None:
    site = Site("url: /\nrules: [{name: n, rpu: 10, unit: minute}]")
    for _ in range(10):
        verdict = site.ask()
    site.clock.advance(2)
    assert not site.ask()
    site.clock.advance(4)
    assert parsed(site.answers.fields(verdict), "ratelimit") == [("n", {"r": 0, "t": 6})]
    assert site.ask()


def test_a_denial_while_the_store_is_lost_is_a_problem_of_its_own_type() -> None:
    site = Site(TWO)
    while verdict := site.ask():
        pass
    said = tuple(decision._replace(degraded=True) for decision in verdict.decisions)
    body = json.loads(site.answers.denial(verdict._replace(decisions=said)).body)
    assert body["type"].endswith("#temporary-reduced-capacity")


def test_a_request_that_never_passes_exceeds_no_quota() -> None:
    site = Site("url: /\nrules: [{actor: account, missing: deny, unit: second, rpu: 1}]")
    assert json.loads(site.denied().body)["type"] == "about:blank"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (1, "1 second"),
        (119, "119 seconds"),
        (120, "2 minutes"),
        (121, "3 minutes"),
        (3_600, "60 minutes"),
        (7_200, "2 hours"),
        (86_400, "24 hours"),
        (172_801, "3 days"),
        (10**9, "11575 days"),
    ],
)
def test_a_wait_is_told_in_a_unit_that_people_count_in(seconds: int, words: str) -> None:
    assert detail_of(seconds) == f"Too many requests. Please try again in {words}."


def test_a_request_that_never_passes_is_not_told_to_come_again_now() -> None:
    rules = "limits: [{url: /, rules: [{actor: account, unit: hour, rpu: 9, missing: deny}]}]"
    site = Site("response: {headers: [legacy, retry-after]}\n" + rules)
    _, headers, _ = site.denied()
    names = {name for name, _ in headers}
    assert b"x-ratelimit-remaining" in names
    assert not names & {b"x-ratelimit-reset", b"retry-after"}
