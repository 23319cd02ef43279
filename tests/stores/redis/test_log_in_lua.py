"""A log inside a real server decides as a tuple of all moments would: refunds, edits, clock steps, and whatever its length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diana.algorithms.sliding_log import LogParams, SlidingLog
from diana.core.contracts import Numbers, State
from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.entry_log import Log, PartialLog, UnknownEntry
from diana.core.limit import Limit
from diana.runtime.entry_points import algorithms
from diana.stores.redis.protocol.scripts import scripts, state_from_wire, wire_limit
from tests.algorithms.tuple_log import TupleLog

BEGIN_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
SIZES = b"BLOCK, STEP, TOLD = 256, 128, 64"

Outcome = tuple[bool, int, int, int, int]
Ask = Callable[..., Any]


@pytest.fixture(params=["as it is", "small blocks"])
def ask(request: pytest.FixtureRequest, server: redis.Redis) -> Ask:
    """With small blocks a short history has many of them."""
    server.flushall()
    text = scripts()["acquire"].text
    assert text.count(SIZES) == 1
    if request.param == "small blocks":
        text = text.replace(SIZES, b"BLOCK, STEP, TOLD = 3, 2, 2")
    sha: Any = server.script_load(text)

    def asked(word: str, key: str, some: CounterSpec, cost: int | str, now: int) -> Any:
        reply: Any = server.evalsha(sha, 1, key, now, "", word, 1, wire_limit(some) or "", cost)
        assert isinstance(reply[1], list), reply
        return reply[1]

    return asked


def meter(rpu: int, unit_us: int = SECOND_US) -> CounterSpec:
    return meter_from_limit("log", Limit(rpu, unit_us), algorithms()["SL"], {})


def outcome_of(said: list[Any]) -> Outcome:
    passed, *numbers = said[1:6]
    return (passed == 1, *numbers)


GAPS = st.one_of(
    st.integers(0, 3),
    st.integers(0, SECOND_US // 3),
    st.sampled_from([SECOND_US - 1, SECOND_US, SECOND_US + 1, -SECOND_US, -SECOND_US - 1]),
    st.integers(-3 * SECOND_US, 0),
)
COSTS = st.one_of(st.integers(1, 3), st.integers(0, 60), st.sampled_from([10**6, 2**53 - 1]))
VERBS = st.sampled_from(["take", "take", "take", "take", "look", "fill", "refund", "refund"])
HISTORIES = st.lists(st.tuples(VERBS, GAPS, COSTS, st.integers(1, 6)), max_size=50)
EDITS = st.lists(st.sampled_from([1, 7, 20, 50]), min_size=1, max_size=3)


def test_it_decides_as_a_tuple_of_all_moments(ask: Ask, server: redis.Redis) -> None:
    runs = iter(range(10**9))

    @settings(
        max_examples=150,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(EDITS, HISTORIES)
    def same(edits: list[int], history: list[tuple[str, int, int, int]]) -> None:
        key = f"history {next(runs)}"
        model: Numbers | None = None
        now = BEGIN_US
        moments = [now]
        for step, (verb, gap, cost, back) in enumerate(history):
            some = meter(edits[step * len(edits) // len(history)])
            params = LogParams(some.limit.rpu, some.limit.unit_us)
            now += gap
            if verb == "refund":
                at = moments[-min(back, len(moments))]
                assert ask("refund", key, some, f"{cost}@{at}", now) == [1]
                if model is not None:
                    model = TupleLog.refund(model, params, cost, at, now)
                continue
            if verb == "fill":
                cost = min(cost, TupleLog.decide(model, params, 0, now)[1][1])
            after, wanted = TupleLog.decide(model, params, cost, now)
            said = ask(verb, key, some, cost, now)
            assert outcome_of(said) == wanted, (verb, step)
            if not wanted[0] and verb == "take":
                _told_is_enough(said[6], after, some, cost, now)
            if cost and verb != "look":
                model = after
                moments.append(now)
        left = TupleLog.decide(model, LogParams(50, SECOND_US), 0, now)[1]
        assert outcome_of(ask("take", key, meter(50), 0, now)) == left

    same()


def _told_is_enough(
    text: bytes, model: Numbers | None, some: CounterSpec, cost: int, denied_at: int
) -> None:
    """What a denial tells denies again as the store would, until the same cost would pass; or says that it does not know."""
    if not text:
        return
    state = None if text == b"-" else state_from_wire(text)
    assert state is None or isinstance(state, Log)
    params = LogParams(some.limit.rpu, some.limit.unit_us)
    retry_us = TupleLog.decide(model, params, cost, denied_at)[1][2]
    for asked in (cost, cost + 1, max(1, cost // 2)):
        for passed in (0, 1, 500_000, retry_us - 1, retry_us, SECOND_US, 2 * SECOND_US):
            wanted = TupleLog.decide(model, params, asked, denied_at + max(0, passed))[1]
            try:
                found = SlidingLog.decide(state, params, asked, denied_at + max(0, passed))[1]
            except UnknownEntry:
                assert isinstance(state, PartialLog)
                assert asked != cost or wanted[0] or retry_us < 0, "it is asked for nothing else"
                continue
            assert found == wanted


LONG = 3_000


@pytest.fixture
def long(ask: Ask) -> Numbers:
    """A log of many entries under `long`, and the same as a tuple."""
    some = meter(LONG, 60 * SECOND_US)
    for number in range(LONG):
        assert ask("take", "long", some, 1, BEGIN_US + 10_000 * number)[0] == 1
    return tuple(BEGIN_US + 10_000 * number for number in range(LONG))


@pytest.mark.parametrize("place", [0, 255, 256, 1_500, LONG - 1])
def test_a_refund_in_the_middle_of_a_long_log(
    place: int, long: Numbers, ask: Ask, server: redis.Redis
) -> None:
    params, now = LogParams(LONG, 60 * SECOND_US), long[-1]
    ask("refund", "long", meter(LONG, 60 * SECOND_US), f"1@{long[place]}", now)
    model = TupleLog.refund(long, params, 1, long[place], now)
    for rpu in (LONG, 2_900, 1_500, 700, 1):
        for cost in (0, 1, 2, 50, rpu):
            wanted = TupleLog.decide(model, LogParams(rpu, params.unit), cost, now)[1]
            assert outcome_of(ask("look", "long", meter(rpu, params.unit), cost, now)) == wanted


def test_what_has_expired_counts_no_more_and_is_removed_bit_by_bit(
    long: Numbers, ask: Ask, server: redis.Redis
) -> None:
    """Half of it expires at once; no single decision removes it all, and each is right."""
    unit = 60 * SECOND_US
    model: Numbers | None = long
    now = long[LONG // 2] + unit
    sizes = []
    for step in range(30):
        after, wanted = TupleLog.decide(model, LogParams(LONG, unit), 1, now + step)
        assert outcome_of(ask("take", "long", meter(LONG, unit), 1, now + step)) == wanted
        model = after
        sizes.append(server.zcount("long", 0, "+inf"))
    assert sizes[0] >= LONG - 130, "a decision removed more than a few"
    assert sizes == sorted(sizes, reverse=True) or sizes[-1] < LONG // 2 + 40


def test_when_all_has_expired_nothing_is_left_of_it(
    long: Numbers, ask: Ask, server: redis.Redis
) -> None:
    some = meter(LONG, 60 * SECOND_US)
    assert ask("take", "long", some, 2, long[-1] + 60 * SECOND_US)[0] == 1
    assert server.zrange("long", 0, -1) == [b"0:2:2"]
    assert 61_001 < server.pttl("long") <= 3_660_001


def test_what_an_earlier_version_wrote_as_text_is_replaced(ask: Ask, server: redis.Redis) -> None:
    server.set("old", "1699999999000000,1699999999900000")
    some = meter(3)
    assert outcome_of(ask("look", "old", some, 1, BEGIN_US)) == (True, 2, SECOND_US, SECOND_US, 0)
    assert server.type("old") == b"string", "a look wrote"
    assert outcome_of(ask("take", "old", some, 3, BEGIN_US)) == (True, 0, SECOND_US, SECOND_US, 0)
    assert server.type("old") == b"zset"


def test_what_is_somebody_elses_is_left_alone(ask: Ask, server: redis.Redis) -> None:
    server.rpush("theirs", "x")
    with pytest.raises(AssertionError, match="WRONGTYPE"):
        ask("take", "theirs", meter(3), 1, BEGIN_US)
    assert server.type("theirs") == b"list"


def test_a_cost_is_one_entry(ask: Ask, server: redis.Redis) -> None:
    some = meter(100_000)
    for _ in range(3):
        assert ask("take", "cost", some, 30_000, BEGIN_US)[0] == 1
    assert server.zcard("cost") == 1
    assert ask("take", "cost", some, 30_000, BEGIN_US)[0] == 0


def test_states_of_all_lengths_travel(server: redis.Redis) -> None:
    for state in (None, (1, 2, 3), SlidingLog.decide(None, LogParams(9, 1), 3, 5)[0]):
        text = _text(state)
        assert _text(state_from_wire(text)) == text


def _text(state: State | None) -> bytes:
    from diana.stores.redis.protocol.scripts import wire_state

    return b"" if state is None else wire_state(state)
