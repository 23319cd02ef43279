"""The Lua twins, in real servers: the same histories through Python and Lua give the same numbers, to the last field."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diana.core.charge import Charge
from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.decision import Decision
from diana.core.limit import Limit, limit_from_spelling
from diana.runtime.entry_points import algorithm_from_spelling, algorithms
from diana.stores.memory import MemoryStore
from diana.stores.redis.protocol.scripts import TOO_LATE, acquire_script, scripts
from diana.stores.redis.protocol.wire_format import CounterEncoder, decisions_from_wire

BEGIN_US = 1_700_000_000_000_000
SECOND_US = 1_000_000


class Answered(NamedTuple):
    now: int
    passed: int
    decisions: list[Decision]


Ask = Callable[..., Answered]


@pytest.fixture
def ask(server: redis.Redis) -> Ask:
    server.flushall()
    script = scripts()["acquire"]
    assert server.script_load(script.text) == script.sha.decode()
    plans = CounterEncoder(lambda *_: None)

    def asked(
        charges: list[Charge], now: int | None = BEGIN_US, deadline: int | None = None
    ) -> Answered:
        keys = plans.keys(charges)
        times = ["" if time is None else time for time in (now, deadline)]
        argv = [*times, *plans.argv("take", charges)]
        reply: Any = server.evalsha(script.sha.decode(), len(keys), *keys, *argv)
        at, said = reply
        if said == TOO_LATE:
            return Answered(at, TOO_LATE, [])
        return Answered(at, said[0], decisions_from_wire(at, said, charges))

    return asked


def meter(name: str, code: str, rpu: int, unit_us: int = SECOND_US, **options: Any) -> CounterSpec:
    return meter_from_limit(name, Limit(rpu, unit_us), algorithms()[code], options)


@pytest.mark.parametrize("code", ["TB", "LB", "W", "SW", "SL"])
def test_random_histories_are_decided_as_in_python(code: str, ask: Ask) -> None:
    store = MemoryStore()
    run = iter(range(10**9))
    gaps = st.one_of(st.integers(0, 3), st.integers(0, SECOND_US), st.integers(-5 * SECOND_US, 0))
    asked = st.tuples(gaps, st.one_of(st.integers(0, 4), st.sampled_from((50, 2**53 - 1))))
    limits = st.sampled_from(
        [
            (3, SECOND_US),
            (7, 7 * SECOND_US),
            (97, SECOND_US),
            (10, 1_000),
            (999_983, 86_400 * SECOND_US),
        ]
    )

    @settings(
        max_examples=60,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.sampled_from(algorithms()[code].examples),
        st.lists(limits, min_size=1, max_size=3),
        st.lists(asked, min_size=1, max_size=15),
    )
    def same(
        options: dict[str, Any], edits: list[tuple[int, int]], history: list[tuple[int, int]]
    ) -> None:
        unit_us = edits[0][1]
        name = f"same{next(run)}"
        now = BEGIN_US
        for step, (gap, cost) in enumerate(history):
            now += gap
            rpu = edits[step * len(edits) // len(history)][0]
            if code == "SL":
                rpu = min(rpu, 100)
            some = meter(name, code, rpu, unit_us, **options)
            charge = Charge(some, "k", cost)
            wanted = store.decide([charge], now)
            found = ask([charge], now)
            assert found.decisions == wanted
            assert found.now == now

    same()


VECTORS = Path(__file__).parents[2] / "vectors"
CASES = [
    pytest.param(case, id=f"{path.stem}: {case['title']}")
    for path in sorted(VECTORS.glob("*.json"))
    if path.stem != "pacer"
    for case in json.loads(path.read_text(encoding="utf-8"))["cases"]
]


@pytest.mark.parametrize("case", CASES)
def test_the_worked_examples(case: dict[str, Any], ask: Ask) -> None:
    options = dict(case["limit"])
    limit = limit_from_spelling(f"{options.pop('rpu')}/{options.pop('unit')}")
    some = meter_from_limit("vector", limit, algorithm_from_spelling(options.pop("algo")), options)
    for step in case["steps"]:
        now = step["at_ms"] * 1_000
        (decision,) = ask([Charge(some, "k", step.get("cost", 1))], now).decisions
        allowed, remaining, retry_us, reset_us, delay_us = decision.outcome
        found = {
            "allowed": allowed,
            "remaining": remaining,
            "retry_after_ms": retry_us / 1_000,
            "reset_after_ms": reset_us / 1_000,
            "delay_ms": delay_us / 1_000,
        }
        wanted = {name: value for name, value in step.items() if name not in ("at_ms", "cost")}
        assert {name: found[name] for name in wanted} == wanted


def test_several_charges_are_all_or_nothing_in_one_command(ask: Ask, server: redis.Redis) -> None:
    wide, narrow = meter("wide", "SW", 50), meter("narrow", "TB", 1)
    both = [Charge(wide, "k"), Charge(narrow, "k")]
    store = MemoryStore()
    for _ in range(3):
        assert ask(both).decisions == store.decide(both, BEGIN_US)
    before = {key: server.get(key) for key in server.scan_iter()}
    calls = server.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert ask(both).passed == 0
    assert {key: server.get(key) for key in server.scan_iter()} == before, "a denial wrote"
    assert server.info("commandstats")["cmdstat_evalsha"]["calls"] == calls + 1


def test_every_key_expires_and_no_digit_is_lost(ask: Ask, server: redis.Redis) -> None:
    some = meter("digits", "TB", 999_983, 86_400 * SECOND_US)
    ask([Charge(some, "k", 500_000)], BEGIN_US + 1)
    (key,) = server.keys()
    assert server.get(key) == b"432000000000000,1700000000000001,864000000"
    (reset_us,) = (
        decision.outcome[3] for decision in ask([Charge(some, "k", 0)], BEGIN_US + 1).decisions
    )
    # An hour more than it matters: the time was given, and the server cannot know how fast it goes.
    life_ms = reset_us / 1_000 + 3_600_000
    assert reset_us / 1_000 + 1_001 < server.pttl(key) <= life_ms + 1


def test_without_a_time_it_is_the_servers(ask: Ask, server: redis.Redis) -> None:
    seconds, micros = server.time()
    now = ask([Charge(meter("time", "W", 5), "k")], None).now
    assert 0 <= now - (seconds * SECOND_US + micros) < 60 * SECOND_US


def test_past_its_deadline_it_writes_nothing(ask: Ask, server: redis.Redis) -> None:
    charge = Charge(meter("late", "TB", 5), "k")
    late = ask([charge], BEGIN_US, BEGIN_US - 1)
    assert (late.passed, late.decisions) == (-1, [])
    assert server.keys() == []
    assert ask([charge], BEGIN_US, BEGIN_US).passed == 1


def test_a_level_is_converted_exactly_though_the_product_is_far_beyond_2_53(ask: Ask) -> None:
    day = 86_400 * SECOND_US
    old, new = (
        meter("edit", "TB", 1_000_003, day),
        meter("edit", "TB", 999_983, day, burst=1_999_966),
    )
    store = MemoryStore()
    for some, cost in ((old, 777_777), (new, 1), (old, 5), (new, 12_345)):
        charge = Charge(some, "k", cost)
        wanted: list[Decision] = store.decide([charge], BEGIN_US + cost)
        assert ask([charge], BEGIN_US + cost).decisions == wanted


@pytest.mark.parametrize("code", ["TB", "W", "SW", "SL"])
@pytest.mark.parametrize("counters", [1, 3])
def test_a_take_written_in_short_is_decided_like_one_written_out(
    code: str, counters: int, server: redis.Redis
) -> None:
    server.flushall()
    sha = server.script_load(scripts()["acquire"].text)
    limit = CounterEncoder(lambda *_: None).of(meter("short", code, 3)).limit
    written_out: list[Any] = ["take", counters, *[limit, 1] * counters]
    in_short: list[Any] = [limit] if counters == 1 else [counters, *[limit] * counters]
    replies = []
    for name, words in (("long", written_out), ("short", in_short)):
        keys = [f"{name}{place}" for place in range(counters)]
        # Five in one call, of which two are denied; and one request behind them, so that each ends where the next begins.
        other: list[Any] = ["look", 1, limit, 1]
        replies.append(
            server.evalsha(
                sha, 5 * len(keys) + 1, *(5 * keys), "x", BEGIN_US, "", *(5 * words), *other
            )
        )
    assert replies[0] == replies[1]
    assert [said[0] for said in replies[0][1:]] == [1, 1, 1, 0, 0, 1]


@pytest.mark.parametrize("words", [["take", -1], ["-1"], ["give", 1], ["take", "x"], [""]])
def test_what_is_no_request_is_refused(words: list[Any], server: redis.Redis) -> None:
    sha = server.script_load(scripts()["acquire"].text)
    with pytest.raises(redis.ResponseError, match="a request is take"):
        server.evalsha(sha, 1, "k", "", "", *words, '["TB",[1,1,1,1,1,1,1]]', 1)


def test_an_algorithm_without_lua_is_left_out() -> None:
    class Plain:
        code = "PLAIN"

    script = acquire_script([*algorithms().values(), Plain()])  # type: ignore[list-item]
    assert b"PLAIN" not in script.text
    assert "redis.call" not in "".join(getattr(one, "lua", "") for one in algorithms().values())


def test_by_the_servers_own_time_a_key_lives_for_its_reset_and_a_second(
    ask: Ask, server: redis.Redis
) -> None:
    some = meter("life", "TB", 10, 60 * SECOND_US)
    ask([Charge(some, "k", 5)], None)
    (key,) = server.keys()
    assert 0 < server.pttl(key) <= 31_001
