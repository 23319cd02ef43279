"""A limit of 0: every request is denied, whatever the algorithm, and what was counted before stays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from diana import (
    AsyncGuard,
    AsyncLimiter,
    ConfigError,
    Guard,
    Limiter,
    LimitExceeded,
    Request,
    limit,
)
from diana.asgi import RateLimitMiddleware
from diana.core.verdict import Verdict
from diana.rules.document.difference import difference
from diana.rules.loading import rules_from_bytes
from diana.starlette import rate_limit
from diana.testing import FakeClock
from tests.stores.shared.zones import zone_name
from tests.web.calls import ask

BEGIN_US = 1_700_000_000_000_000
ALGORITHMS = ("TB", "LB", "W", "SW", "SL")
RULE = "limits: [{url: /, rules: [{name: api, actor: account, unit: minute, %s}]}]"
STORES = ("memory", "zone", "redis")


def guard(text: str, store: str | None = None) -> Guard:
    return Guard(rules_from_bytes(text.encode()), store, clock=FakeClock(BEGIN_US))


def asked(account: str = "alice", **headers: str) -> Request:
    return Request("GET", "/", {"X-Account-Id": account, **headers}, peer="203.0.113.9")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where rules of scope global count."""
    if request.param == "redis":
        yield f"{request.getfixturevalue('valkey_url')}?budget=10s"
    elif request.param == "memory":
        yield "memory://"
    else:
        with zone_name() as name:
            yield f"shared://{name}?size=4m"


def is_denied_for_good(verdict: Verdict) -> bool:
    denial = verdict.denial
    assert denial is not None
    return (denial.never, denial.retry_after, denial.remaining, denial.limit) == (True, None, 0, 0)


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("options", ["", ", cost: 3", ", missing: together", ", scope: divided"])
def test_every_request_is_denied(algo: str, options: str) -> None:
    checks = guard(RULE % f"rpu: 0, algo: {algo}{options}")
    for verdict in (checks.check(asked()), checks.peek(asked()), checks.check(asked("bob"))):
        assert is_denied_for_good(verdict)
        assert verdict.denied_by is checks.policy.rules[0]


@pytest.mark.parametrize("scope", ["global", "leased"])
def test_no_store_is_queried(scope: str) -> None:
    checks = guard(RULE % f"rpu: 0, scope: {scope}", "redis://127.0.0.1:1?budget=10ms")
    verdict = checks.check(asked())
    assert is_denied_for_good(verdict)
    assert not verdict.decisions[0].degraded
    checks.close()


def test_coroutines_are_denied_too() -> None:
    policy = rules_from_bytes((RULE % "rpu: 0, scope: global").encode())
    checks = AsyncGuard(policy, "redis://127.0.0.1:1?budget=10ms")

    async def main() -> tuple[Verdict, Verdict]:
        verdicts = await checks.check(asked()), await checks.peek(asked())
        await checks.close()
        return verdicts

    for verdict in asyncio.run(main()):
        assert is_denied_for_good(verdict)
        assert not verdict.decisions[0].degraded


def test_other_rules_are_not_charged() -> None:
    checks = guard(
        """
        limits:
        - {url: /, rules: [{name: all, unit: minute, rpu: 5}]}
        - {url: /closed, rules: [{name: closed, unit: minute, rpu: 0}, {name: more, unit: minute, rpu: 2}]}
        """
    )
    closed = Request("GET", "/closed", peer="203.0.113.9")
    for _ in range(9):
        verdict = checks.check(closed)
        assert verdict.denied_by is not None
        assert verdict.denied_by.name == "closed"
        assert [decision.remaining for decision in verdict.decisions] == [5, 0]
    assert checks.check(asked()).decisions[0].remaining == 4


def test_a_tier_of_zero_is_denied() -> None:
    checks = guard(
        "identity: {tier: header X-Plan, trust_tier: true}\n"
        + RULE % "rpu: {free: 0, pro: 100, else: 0}"
    )
    assert is_denied_for_good(checks.check(asked(**{"X-Plan": "free"})))
    assert is_denied_for_good(checks.check(asked()))
    passed = checks.check(asked(**{"X-Plan": "pro"}))
    assert (passed.allowed, passed.decisions[0].remaining) == (True, 99)
    assert is_denied_for_good(checks.check(asked(**{"X-Plan": "free"})))
    assert checks.check(asked(**{"X-Plan": "pro"})).decisions[0].remaining == 98


def test_an_override_of_zero_is_denied() -> None:
    checks = guard(RULE % "rpu: 9, cost: 2, overrides: {mallory: {rpu: 0}}")
    assert is_denied_for_good(checks.check(asked("mallory")))
    assert checks.check(asked()).decisions[0].remaining == 7


def test_an_override_of_a_limit_of_zero_passes() -> None:
    checks = guard(RULE % "rpu: 0, overrides: {acme: {rpu: 3, burst: 2}}")
    assert [bool(checks.check(asked("acme"))) for _ in range(3)] == [True, True, False]
    assert is_denied_for_good(checks.check(asked()))


def test_overrides_by_code_of_zero() -> None:
    checks = guard(RULE % "rpu: 9, cost: 2")
    checks.check(asked())
    checks.override("api", "alice", rpu=0)
    assert is_denied_for_good(checks.check(asked()))
    checks.remove_override("api", "alice")
    assert checks.check(asked()).decisions[0].remaining == 5


def test_functions_may_give_a_limit_of_zero() -> None:
    policy = rules_from_bytes((RULE % "rpu: 9").encode()).with_functions(
        "api", limit=lambda request: request.header("x-limit")
    )
    checks = Guard(policy, clock=FakeClock(BEGIN_US))
    for spelling in ("0/minute", "0/hour"):
        verdict = checks.check(asked(**{"X-Limit": spelling}))
        assert is_denied_for_good(verdict)
        assert not verdict.function_errors
    assert checks.check(asked(**{"X-Limit": "9/minute"})).decisions[0].remaining == 8


def test_a_rule_in_the_shadow_only_reports() -> None:
    checks = guard(RULE % "rpu: 0, mode: shadow")
    for verdict in (checks.check(asked()), checks.peek(asked())):
        assert verdict
        assert [bool(decision) for decision in verdict.decisions] == [False]


def test_peek_says_what_check_says_of_a_shadow_that_refuses_who_has_no_identity() -> None:
    checks = guard(RULE % "rpu: 9, mode: shadow, missing: deny")
    nobody = Request("GET", "/", peer="203.0.113.9")
    assert checks.peek(nobody).decisions == checks.check(nobody).decisions


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_edits_to_and_from_zero_keep_counts(store: str, algo: str) -> None:
    options = ", burst: 9, max_wait: 90s" if algo == "LB" else ""
    text = RULE % f"rpu: {{rpu}}, algo: {algo}, scope: global{options}"
    open_rules = rules_from_bytes(text.replace("{rpu}", "10").encode())
    closed_rules = rules_from_bytes(text.replace("{rpu}", "0").encode())
    checks = Guard(open_rules, store, clock=FakeClock(BEGIN_US))
    checks.reset(asked())
    for _ in range(4):
        assert checks.check(asked())
    checks._evaluator.swap(closed_rules)
    assert is_denied_for_good(checks.check(asked()))
    checks._evaluator.swap(open_rules)
    assert checks.check(asked()).decisions[0].remaining == 5
    checks._evaluator.swap(closed_rules)
    checks.reset(asked())
    checks._evaluator.swap(open_rules)
    assert checks.check(asked()).decisions[0].remaining == 9
    checks.close()


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_limiter_of_zero(algo: str) -> None:
    limiter = Limiter("0/minute", algo=algo, clock=FakeClock(BEGIN_US))
    for decision in (limiter.take("a"), limiter.peek("a"), limiter.wait("a", timeout=5)):
        assert (decision.allowed, decision.never, decision.retry_after) == (False, True, None)
    limiter.reset("a")
    with pytest.raises(LimitExceeded, match="it can never pass"), limiter.require("a"):
        pass


def test_a_limiter_of_several_limits_with_one_of_zero_charges_none() -> None:
    limiter = Limiter("5/second; 0/minute", clock=FakeClock(BEGIN_US))
    assert limiter.take("a").never
    assert not limiter.peek("a")


def test_an_asynchronous_limiter_of_zero() -> None:
    limiter = AsyncLimiter("0/minute", store="redis://127.0.0.1:1", name="closed")

    async def main() -> None:
        decision = await limiter.take("a")
        assert (decision.never, decision.degraded) == (True, False)
        assert (await limiter.wait("a")).never
        await limiter.close()

    asyncio.run(main())


def test_a_function_with_a_limit_of_zero_is_never_called() -> None:
    @limit("0/minute", fallback=lambda: "closed")
    def work() -> str:
        raise AssertionError

    assert work() == "closed"


def test_the_response_says_not_to_come_again() -> None:
    policy = rules_from_bytes(
        (RULE % "rpu: 0" + "\nresponse: {headers: [ietf, retry-after, legacy]}").encode()
    )
    answer = ask(RateLimitMiddleware(_app, policy))
    assert answer.status == 503
    assert answer.header("retry-after") is answer.header("x-ratelimit-reset") is None
    assert answer.header("ratelimit-policy") == '"api";q=0;w=60'
    assert answer.header("ratelimit") == '"api";r=0'
    assert answer.header("cache-control") == "no-store"


def test_a_route_with_a_limit_of_zero() -> None:
    @rate_limit("5/minute; 0/hour", name="closed")
    async def view(_: object) -> None:
        raise AssertionError

    answer = ask(Starlette(routes=[Route("/", view)]))
    assert (answer.status, answer.header("retry-after")) == (429, None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("rpu: -1", "'-1' is no whole number from 0; write digits such as 10"),
        ("rpu: null", "'null' is no whole number from 0; write digits such as 10"),
        ("algo: C, most: 0", "'0' is no whole number from 1; write digits such as 10"),
        ("rpu: 5, overrides: {a: {rpu: -2}}", "'-2' is no whole number from 0"),
        ("rpu: 0, algo: SW, slices: 0", "'0' is no whole number from 1"),
    ],
)
def test_wrong_numbers(fields: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rules_from_bytes((RULE % fields).replace("unit: minute, algo: C", "algo: C").encode())
    assert message in str(caught.value)


def test_the_difference_names_the_limits() -> None:
    old, new = (rules_from_bytes((RULE % f"rpu: {rpu}").encode()) for rpu in (10, 0))
    assert [str(change) for change in difference(old, new)] == ["~ api: rpu 10 → 0"]


async def _app(*_: object) -> None:
    raise AssertionError


def test_keys_that_no_value_lets_pass_are_no_warning() -> None:
    rules = "limits: [{url: /, rules: [{actor: header X-Key, unit: minute, rpu: %d, overrides: {k1: {rpu: 9}}}]}]"
    warned, silent = (rules_from_bytes((rules % rpu).encode()).warnings for rpu in (5, 0))
    assert "clients can invent values of header X-Key" in warned[0].message
    assert silent == ()
