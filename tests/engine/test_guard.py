"""All rules, by request."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from diana import AsyncGuard, ConfigError, Guard, Policy, Request, StoreError, Verdict
from diana.rules.loading import rules_from_bytes
from diana.stores.memory import MemoryStore
from diana.testing import FakeClock

BEGIN_US = 1_700_000_000_000_000

CLASSIC = """
Url: /
rules:
  - actor: device
    unit: second
    rpu: 10
    algo: TB
    scope: global
  - actor: all
    unit: second
    rpu: 50
    algo: W
    scope: local
"""
NESTED = """
- url: /
  rules: [{name: site, unit: minute, rpu: 5}]
- url: /sample
  rules: [{name: sample, unit: minute, rpu: 2}]
"""


def policy(text: str) -> Policy:
    return rules_from_bytes(text.encode())


def guard(text: str, store: MemoryStore | None = None) -> Guard:
    return Guard(policy(text), store, clock=FakeClock(BEGIN_US))


def left(verdict: Verdict) -> list[int]:
    return [decision.remaining for decision in verdict.decisions]


def test_the_classic_example() -> None:
    some = guard(CLASSIC)
    one = Request("GET", "/", {"X-Device-Id": "one"})
    assert [some.check(one).allowed for _ in range(11)] == [True] * 10 + [False]
    denied = some.check(one)
    assert denied.denied_by is not None
    assert denied.denied_by.actor == "device"
    others = [Request("GET", "/", {"X-Device-Id": f"d{n}"}) for n in range(50)]
    assert sum(some.check(other).allowed for other in others) == 40
    denied = some.check(others[45])
    assert denied.denied_by is not None
    assert denied.denied_by.actor == "all"


def test_rules_are_asked_broad_to_narrow_and_a_denial_is_charged_to_none() -> None:
    some = guard(NESTED)
    sample, other = Request(path="/sample/x"), Request(path="/other")
    assert [left(some.check(sample)) for _ in range(2)] == [[4, 1], [3, 0]]
    for _ in range(3):
        denied = some.check(sample)
        assert denied.denied_by is not None
        assert denied.denied_by.name == "sample"
        assert left(denied) == [3, 0], "a denial by /sample was charged to /"
    assert [left(some.check(other)) for _ in range(3)] == [[2], [1], [0]]
    denied = some.check(sample)
    assert denied.denied_by is not None
    assert denied.denied_by.name == "site", "the first that denies is named"


def test_a_rule_in_the_shadow_counts_what_passed_and_denies_nobody() -> None:
    some = guard(
        """
        - url: /
          rules:
            - {name: tried, unit: minute, rpu: 1, mode: shadow}
            - {name: real, actor: ip, unit: minute, rpu: 3}
            - {name: queue, actor: path, unit: minute, rpu: 1, algo: LB, burst: 9, mode: shadow}
        """
    )
    request = Request(peer="192.0.2.1")
    first, second, third, fourth = (some.check(request) for _ in range(4))
    assert [bool(verdict) for verdict in (first, second, third, fourth)] == [True] * 3 + [False]
    assert [bool(decision) for decision in second.decisions] == [False, True, True]
    assert third.delay == 0, "a queue in the shadow lets nobody wait"
    assert third.decisions[2].delay == 120
    assert [rule.name for rule in fourth.rules] == ["real"], (
        "a denied request is no business of the shadow"
    )
    other = some.check(Request(peer="192.0.2.2"))
    assert other.decisions[2].delay == 180, "what was denied was counted in the shadow"


def test_a_rule_in_the_shadow_reports_whom_it_would_refuse() -> None:
    some = guard(
        "url: /\nrules: [{actor: account, unit: minute, rpu: 9, missing: deny, mode: shadow}]"
    )
    verdict = some.check(Request(peer="192.0.2.1"))
    assert verdict.allowed
    assert not verdict.decisions[0]
    assert verdict.decisions[0].retry_after is None
    assert some.check(Request(headers={"X-Account-Id": "alice"})).decisions[0].remaining == 8


@pytest.mark.parametrize("shell", [Guard, AsyncGuard])
@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param("rpu: {free: 2, else: 9}, scope: global", id="a tier"),
        pytest.param("rpu: 9, scope: divided", id="a share"),
        pytest.param("rpu: 9, scope: local", id="its own"),
        pytest.param("rpu: 9, scope: local, algo: SW, cost: 3", id="a cost"),
    ],
)
def test_peek_reports_of_a_rule_in_the_shadow_what_check_reports(shell: Any, numbers: str) -> None:
    some = policy(
        "{nodes: 3, identity: {tier: header X-Tier, trust_tier: true}, limits: [{url: /, rules: ["
        "{name: all, actor: all, unit: minute, rpu: 5},"
        f"{{name: known, actor: account, unit: minute, missing: deny, mode: shadow, {numbers}}},"
        "{name: address, actor: ip, unit: minute, rpu: 7, mode: shadow}]}]}"
    )
    request = Request("GET", "/", {"X-Tier": "free"}, peer="203.0.113.7")

    def ask(verb: str) -> Any:
        found = getattr(guard, verb)(request)
        return asyncio.run(found) if shell is AsyncGuard else found

    guard = shell(some, MemoryStore(), clock=FakeClock(BEGIN_US), local_store=MemoryStore())
    looked = ask("peek")
    checked = ask("check")
    assert looked[:4] == checked[:4]
    assert looked.decisions == checked.decisions
    assert looked.meters == checked.meters
    assert looked.decisions[1].key == "?"
    assert looked.decisions[1].limit == 9
    counted = guard._evaluator.counters(request, None)
    assert [meter.id.split("|")[0] for _, meter, _ in counted] == ["diana:all", "diana:address"]
    ask("reset")
    assert ask("peek").decisions == looked.decisions


def test_a_rule_that_is_off_is_not_asked() -> None:
    some = guard("url: /\nrules: [{unit: minute, rpu: 1, mode: off}]")
    assert [len(some.check(Request()).rules) for _ in range(3)] == [0, 0, 0]


def test_the_delay_is_the_longest_of_its_rules() -> None:
    some = guard(
        """
        url: /
        rules:
          - {name: slow, unit: minute, rpu: 10, algo: LB, burst: 5}
          - {name: fast, unit: second, rpu: 10, algo: LB, burst: 5}
        """
    )
    assert [some.check(Request()).delay for _ in range(3)] == [0, 6, 12]


def test_refund_takes_back_what_was_charged() -> None:
    some = guard(NESTED)
    request = Request(path="/sample")
    verdict = some.check(request)
    some.refund(verdict)
    assert left(some.check(request)) == [4, 1]
    some.check(request)
    denied = some.check(request)
    some.refund(denied)
    assert not some.check(request)


def test_global_rules_count_in_the_store_and_a_denial_there_gives_back_here() -> None:
    text = """
        url: /
        rules:
          - {name: here, unit: minute, rpu: 5, scope: local}
          - {name: there, unit: minute, rpu: 2, scope: global}
          - {name: also here, unit: hour, rpu: 9, scope: local}
    """
    store = MemoryStore()
    one, other = guard(text, store), guard(text, store)
    assert left(one.check(Request())) == [4, 1, 8]
    assert left(other.check(Request())) == [4, 0, 8]
    denied = one.check(Request())
    assert denied.denied_by is not None
    assert denied.denied_by.name == "there"
    assert left(denied) == [4, 0, 8]
    assert left(one.check(Request())) == [4, 0, 8], "the local charge was not given back"


def test_a_local_denial_does_not_ask_the_store() -> None:
    class Counting(MemoryStore):
        asked = 0

        def decide(self, charges, now=None):  # type: ignore[no-untyped-def]
            self.asked += 1
            return super().decide(charges, now)

        def peek(self, charges, now=None):  # type: ignore[no-untyped-def]
            self.asked += 1
            return super().peek(charges, now)

    store = Counting()
    some = guard(
        """
        url: /
        rules:
          - {name: there, unit: minute, rpu: 9, scope: global}
          - {name: here, unit: minute, rpu: 1, scope: local}
        """,
        store,
    )
    assert [bool(some.check(Request())) for _ in range(3)] == [True, False, False]
    assert store.asked == 1


@pytest.mark.parametrize(
    "detour",
    ["/x/../healthz", "/x%2F..%2Fhealthz", "/x\\..\\healthz", "/healthz%00/../x", "//healthz"],
)
def test_a_detour_into_an_exempted_path_stays_limited(detour: str) -> None:
    some = guard("url: /\nexcept: [/healthz]\nrules: [{unit: minute, rpu: 1}]")
    assert some.check(Request(path="/healthz/live")).rules == ()
    assert len(some.check(Request(path=detour)).rules) == 1


def test_methods_are_counted_whatever_their_case_and_head_as_get() -> None:
    some = policy("url: /\nmethods: [get]\nrules: [{unit: minute, rpu: 1}]")
    assert [len(some.match(Request(method))) for method in ("GET", "get", "head", "POST")] == [
        1,
        1,
        1,
        0,
    ]


def test_who_is_refused_for_want_of_an_identity_is_told_the_first_rule_that_denies() -> None:
    some = guard(
        """
        - url: /
          rules: [{name: broad, unit: minute, rpu: 1}]
        - url: /a
          rules: [{name: narrow, actor: account, unit: minute, rpu: 5, missing: deny}]
        """
    )
    refused = some.check(Request(path="/a"))
    assert refused.denied_by is not None
    assert refused.denied_by.name == "narrow"
    assert refused.denial is not None
    assert refused.denial.retry_after is None
    assert some.check(Request(path="/")), "who was refused was charged"
    denied = some.check(Request(path="/a"))
    assert denied.denied_by is not None
    assert denied.denied_by.name == "broad"


def test_what_a_client_sends_cannot_draw_in_an_explanation() -> None:
    drawn = guard(NESTED).check(Request("GET", "/a\n╰─▶ allowed\x1b[31m")).explain()
    assert drawn.splitlines()[0] == "GET /a\\n\\u2570\\u2500\\u25b6 allowed\\x1b[31m from nowhere"


def test_a_clock_that_is_none_is_an_error_at_once() -> None:
    with pytest.raises(ConfigError, match="give a callable"):
        Guard(policy(NESTED), clock=3)  # type: ignore[arg-type]


def test_a_subclass_may_have_a_check_of_its_own() -> None:
    class Silent(Guard):
        def check(self, request: Request) -> Verdict:
            return super().check(Request(path="/nowhere"))

    assert Silent(policy(NESTED)).check(Request(path="/sample")).request.path == "/nowhere"


def test_observers_are_told_and_cannot_do_harm(caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[Request, Verdict]] = []

    def broken(request: Request, verdict: Verdict) -> None:
        raise RuntimeError("observer")

    some = Guard(policy(NESTED), observers=[broken, lambda *seen: told.append(seen)])
    request = Request(path="/sample")
    with caplog.at_level(logging.ERROR, "diana"):
        verdict = some.check(request)
    assert told == [(request, verdict)]
    assert "an observer failed; the verdict stands" in caplog.text


def test_from_file_and_close(tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(NESTED)
    some = Guard.from_file(file, clock=FakeClock(BEGIN_US))
    verdict = some.check(Request(path="/sample"))
    assert verdict.version == some.policy.version != ""
    some.close()


def test_the_async_guard_is_the_same_with_await(tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(NESTED)

    async def main() -> None:
        some = AsyncGuard.from_file(file, clock=FakeClock(BEGIN_US))
        request = Request(path="/sample")
        verdict = await some.check(request)
        assert left(verdict) == [4, 1]
        await some.refund(verdict)
        assert left(await some.check(request)) == [4, 1]
        assert len(some.policy.rules) == 2
        await some.close()

    asyncio.run(main())


def test_a_verdict_explains_itself() -> None:
    some = guard(NESTED)
    request = Request(path="/sample", peer="192.0.2.7")
    for _ in range(2):
        some.check(request)
    assert some.check(request).explain() == (
        "GET /sample from 192.0.2.7\n"
        "│\n"
        "├─ /: 5/minute by all, TB, local\n"
        "│    key '=': ✓ 3 of 5 left\n"
        "│\n"
        "├─ /sample: 2/minute by all, TB, local\n"
        "│    key '=': ✗ denied, retry after 30 s\n"
        "│\n"
        "╰─▶ denied by sample; charged to none"
    )
    assert (
        "no rule is asked"
        in guard(NESTED.replace("url: /\n", "url: /x\n")).check(Request(path="/y")).explain()
    )


def test_editing_a_limit_keeps_what_was_counted() -> None:
    store = MemoryStore()
    text = "url: /\nrules: [{unit: minute, rpu: RPU, scope: global}]"
    request = Request()
    ten = guard(text.replace("RPU", "10"), store)
    assert left(ten.check(request)) == [9]
    twenty = guard(text.replace("RPU", "20"), store)
    assert left(twenty.check(request)) == [18]


@pytest.mark.parametrize(
    "path", ["/login%0A", "/login\n", "/login%0d%0a", "/login%7f", "/login%09x"]
)
def test_a_control_character_does_not_lead_around_a_rule(path: str) -> None:
    some = policy("url: /login\nrules: [{unit: minute, rpu: 1}]")
    assert len(some.match(Request(path=path))) == 1


def test_a_store_that_fails_leaves_no_local_charge_behind() -> None:
    class Failing(MemoryStore):
        def decide(self, charges, now=None):  # type: ignore[no-untyped-def]
            raise StoreError("gone")

    text = """
        url: /
        rules:
          - {name: here, unit: minute, rpu: 5, scope: local}
          - {name: there, unit: minute, rpu: 5, scope: global}
    """
    some = guard(text, Failing())
    for _ in range(9):
        with pytest.raises(StoreError):
            some.check(Request())
    store = some._evaluator.local
    (rule,) = (rule for rule in some.policy.rules if rule.name == "here")
    assert store.peek([(rule.meter, "=", 0)], BEGIN_US)[0].remaining == 5


def test_headers_in_bytes_are_read_too() -> None:
    some = guard("url: /\nrules: [{actor: account, unit: minute, rpu: 1}]")
    headers: list[tuple[bytes, bytes]] = [(b"X-Account-Id", b"alice")]
    verdict = some.check(Request(headers=headers))  # type: ignore[arg-type]
    assert verdict.decisions[0].key.startswith("#")
