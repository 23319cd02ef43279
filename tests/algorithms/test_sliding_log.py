"""The sliding log decides as a tuple of all moments would, to the last field; and at any length for the same price."""

from __future__ import annotations

from time import perf_counter_ns

from hypothesis import given, settings
from hypothesis import strategies as st

from diana.algorithms.sliding_log import LogParams, SlidingLog
from diana.core.contracts import Numbers
from diana.core.entry_log import Log
from tests.algorithms.tuple_log import TupleLog

BEGIN_US = 1_700_000_000_000_000
SECOND_US = 1_000_000

GAPS = st.one_of(
    st.integers(0, 3),
    st.integers(0, SECOND_US),
    st.sampled_from([SECOND_US - 1, SECOND_US, SECOND_US + 1, -SECOND_US, -SECOND_US - 1]),
    st.integers(-3 * SECOND_US, 0),
)
COSTS = st.one_of(st.integers(0, 4), st.integers(1, 60), st.sampled_from([10**6, 2**53 - 1]))
HISTORIES = st.lists(
    st.tuples(st.sampled_from(["take", "take", "take", "refund"]), GAPS, COSTS, st.integers(1, 4)),
    max_size=40,
)
EDITS = st.lists(st.sampled_from([1, 3, 7, 50]), min_size=1, max_size=3)


@settings(max_examples=1_500, deadline=None, derandomize=True)
@given(EDITS, HISTORIES)
def test_it_decides_as_a_tuple_of_all_moments(
    edits: list[int], history: list[tuple[str, int, int, int]]
) -> None:
    log: Log | None = None
    model: Numbers | None = None
    now = BEGIN_US
    moments = [now]
    for step, (verb, gap, cost, back) in enumerate(history):
        params = LogParams(edits[step * len(edits) // len(history)], SECOND_US)
        now += gap
        if verb == "refund":
            at = moments[-min(back, len(moments))]
            if log is not None and model is not None:
                log = SlidingLog.refund(log, params, min(cost, 60), at, now)
                model = TupleLog.refund(model, params, min(cost, 60), at, now)
            continue
        moments.append(now)
        after, outcome = SlidingLog.decide(log, params, cost, now)
        model_after, wanted = TupleLog.decide(model, params, cost, now)
        assert outcome == wanted
        assert (after is log) == (model_after is model) or not cost or outcome[0]
        if cost:
            log, model = after, model_after


def _best_us(state: Log | None, params: LogParams, now: int) -> float:
    """One decision, the fastest of many rounds; what expires is dropped and what passes is appended."""
    best = 1e9
    for _ in range(30):
        begin = perf_counter_ns()
        for _ in range(200):
            now += 10
            state, _ = SlidingLog.decide(state, params, 1, now)
        best = min(best, (perf_counter_ns() - begin) / 200)
    return best / 1_000


def test_a_decision_costs_the_same_at_any_length() -> None:
    """A tuple would cost 300 times as much; ten leaves a busy machine some room. The benchmark says how much it really is."""
    costs = {}
    for length in (10, 100_000):
        params, log = LogParams(length + 10_000, 10 * length), None
        for number in range(2 * length):
            log, _ = SlidingLog.decide(log, params, 1, BEGIN_US + 10 * number)
        assert log is not None
        costs[length] = _best_us(log, params, BEGIN_US + 20 * length)
    assert costs[100_000] < 10 * costs[10], costs
