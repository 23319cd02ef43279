"""The same histories through the pure algorithm, the memory store and every server: identical decisions, to the last field."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diana.core.charge import Charge, charged_at
from diana.core.contracts import State
from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.decision import Decision
from diana.core.limit import limit_from_spelling
from diana.runtime.entry_points import algorithm_from_spelling, algorithms
from diana.stores.memory import MemoryStore
from diana.stores.redis.store import RedisStore
from tests.servers.server import Server
from tests.stores.redis.counting import BEGIN_US, SECOND_US, calls, meter, opened

Decide = Callable[[list[Charge], int], list[Decision]]

EXAMPLES = settings(
    max_examples=40,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
GAPS = st.one_of(st.integers(0, 3), st.integers(0, SECOND_US), st.integers(-3 * SECOND_US, 0))
COSTS = st.one_of(st.integers(0, 4), st.sampled_from((50, 2**53 - 1)))
STEPS = st.tuples(GAPS, COSTS, st.sampled_from("ab"))


@pytest.fixture(scope="module")
def store(any_server: Server) -> Iterator[RedisStore]:
    with opened(any_server.url) as store:
        yield store


@pytest.fixture(scope="module", params=["threads", "tasks"])
def decide(store: RedisStore, request: pytest.FixtureRequest) -> Iterator[Decide]:
    """Ask it from a thread, and from a task."""
    if request.param == "threads":
        yield store.decide
        return
    with asyncio.Runner() as runner:
        yield lambda charges, now: runner.run(store.asynchronous.decide(charges, now))


@pytest.mark.parametrize("code", algorithms())
def test_random_histories_of_one_limit_that_is_edited(code: str, decide: Decide) -> None:
    memory = MemoryStore()
    runs = iter(range(10**9))
    limits = st.sampled_from([1, 3, 7, 97])

    @EXAMPLES
    @given(
        st.sampled_from(algorithms()[code].examples),
        st.lists(limits, min_size=1, max_size=3),
        st.lists(STEPS, min_size=1, max_size=12),
    )
    def same(
        options: dict[str, Any], edits: list[int], history: list[tuple[int, int, str]]
    ) -> None:
        name = f"one {code} {next(runs)} {id(decide)}"
        states: dict[str, State | None] = {}
        now = BEGIN_US
        for step, (gap, cost, key) in enumerate(history):
            now += gap
            some = meter(name, code, edits[step * len(edits) // len(history)], **options)
            after, outcome = some.decide(states.get(key), some.params, cost, now)
            if cost:
                states[key] = after
            wanted = [Decision(outcome, some.params.limit, key, cost, now)]
            charges = [Charge(some, key, cost)]
            assert memory.decide(charges, now) == wanted
            assert decide(charges, now) == wanted

    same()


def test_random_histories_of_several_limits_at_once(decide: Decide, store: RedisStore) -> None:
    memory = MemoryStore()
    runs = iter(range(10**9))
    kinds = st.tuples(st.sampled_from(list(algorithms())), st.sampled_from([1, 3, 7]))

    @EXAMPLES
    @given(
        st.lists(kinds, min_size=2, max_size=4, unique_by=lambda kind: kind[0]),
        st.lists(STEPS, min_size=1, max_size=12),
    )
    def same(limits: list[tuple[str, int]], history: list[tuple[int, int, str]]) -> None:
        name = f"several {next(runs)} {id(decide)}"
        meters = [meter(name, code, rpu) for code, rpu in limits]
        now = BEGIN_US
        for gap, cost, key in history:
            now += gap
            charges = [Charge(some, key, cost) for some in meters]
            assert decide(charges, now) == memory.decide(charges, now)

    same()


def test_random_requests_that_share_some_of_their_counters(
    decide: Decide, store: RedisStore
) -> None:
    """Each meets limits of its own and of others, so that of a denial some counters are known and others are not."""
    memory = MemoryStore()
    runs = iter(range(10**9))
    kinds = st.tuples(st.sampled_from(list(algorithms())), st.sampled_from([1, 3, 7]))
    which = st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)
    verbs = st.sampled_from(["decide", "decide", "decide", "peek", "refund"])

    @EXAMPLES
    @given(
        st.lists(kinds, min_size=4, max_size=4),
        st.lists(st.tuples(STEPS, which, verbs), min_size=1, max_size=16),
    )
    def same(
        limits: list[tuple[str, int]],
        history: list[tuple[tuple[int, int, str], list[int], str]],
    ) -> None:
        name = f"sharing {next(runs)} {id(decide)}"
        meters = [meter(f"{name} {place}", *limit) for place, limit in enumerate(limits)]
        now = BEGIN_US
        for (gap, cost, key), places, verb in history:
            now += gap
            charges = [Charge(meters[place], key, cost) for place in places]
            if verb == "peek":
                assert store.peek(charges, now) == memory.peek(charges, now)
                continue
            found = decide(charges, now)
            assert found == memory.decide(charges, now)
            if verb == "refund" and all(found):
                for charge, decision in zip(charges, found, strict=True):
                    for one in (store, memory):
                        one.refund([charge], charged_at(charge.meter, decision), now)

    same()


VECTORS = Path(__file__).parents[2] / "vectors"
CASES = [
    pytest.param(case, id=f"{path.stem}: {case['title']}")
    for path in sorted(VECTORS.glob("*.json"))
    if path.stem != "pacer"
    for case in json.loads(path.read_text(encoding="utf-8"))["cases"]
]


@pytest.mark.parametrize("case", CASES)
def test_the_worked_examples(case: dict[str, Any], decide: Decide) -> None:
    some = _meter_of(case, f"vector {id(decide)}: {case['title']}")
    for step in case["steps"]:
        charge = Charge(some, "k", step.get("cost", 1))
        (decision,) = decide([charge], step["at_ms"] * 1_000)
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
        assert not decision.degraded


def test_the_server_is_really_asked(decide: Decide, any_server: Server, store: RedisStore) -> None:
    some = meter(f"asked {id(decide)}")
    before, counted = calls(any_server), store.counts()
    for number in range(50):
        assert all(decide([Charge(some, f"key {number}")], BEGIN_US))
    assert calls(any_server) - before >= 50
    assert store.counts()["trips"] - counted["trips"] == 50
    assert store.counts()["degraded"] == 0
    for number in range(50):
        key = f"diana:asked {id(decide)}|TB|second|key {number}"
        assert any_server.ask("GET", key) is not None, "the counter is not where it is documented"


def _meter_of(case: dict[str, Any], name: str) -> CounterSpec:
    options = dict(case["limit"])
    limit = limit_from_spelling(f"{options.pop('rpu')}/{options.pop('unit')}")
    return meter_from_limit(name, limit, algorithm_from_spelling(options.pop("algo")), options)
