"""What every store keeps, whatever it is made of: checked with the pure algorithms as the judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

from diana.core.charge import Charge, charged_at
from diana.core.contracts import Algorithm, State, Store
from diana.core.decision import Decision
from diana.core.errors import CostError
from diana.core.limit import Limit, holds_places
from diana.core.meter import Meter, meter_from_limit
from diana.core.plugins import algorithms
from diana.testing.fake_clock import FakeClock
from diana.testing.laws import check_needs

BEGIN_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
ODD_KEYS = ("", " ", "a", "A", "a|b", "a:b", "{a}", "ä", "\x00", "\n", "a" * 600, "a" * 601)


def store_contract(
    open_store: Callable[[], Store],
    *,
    examples: int = 50,
    counts: Sequence[Algorithm] | None = None,
    reports_more_after: bool = True,
) -> None:
    """Raise AssertionError with what the store got wrong. `open_store` gives an empty store each time.

    `counts`: the algorithms that it can count; if not said, all that are installed. `reports_more_after`: whether an allowed decision has
    the `more_after` of its algorithm; a store that answers from leases reports none.
    """
    check_needs()
    known = list(algorithms().values()) if counts is None else list(counts)
    beside = algorithms()["SL"] if counts is None else known[-1]
    for algorithm in known:
        _same_as_the_algorithm(open_store, algorithm, examples, reports_more_after)
        _bound_is_the_same(open_store, algorithm)
        _all_or_nothing(open_store, algorithm, beside)
        _exact_under_threads(open_store, algorithm)
    _wrong_costs_are_refused(open_store)
    _nothing_asked_is_nothing_said(open_store)
    _keys_are_apart(open_store)
    _limits_are_apart(open_store, known)
    _edits_keep_the_count(open_store)
    _peek_and_zero_write_nothing(open_store)
    _refund_and_reset(open_store)


def _meter(name: str, algorithm: Algorithm, rpu: int = 5, **options: Any) -> Meter:
    return meter_from_limit(name, Limit(rpu, SECOND_US), algorithm, options)


def _same_as_the_algorithm(
    open_store: Callable[[], Store], algorithm: Algorithm, examples: int, reports_more_after: bool
) -> None:
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    store = open_store()
    renew = getattr(store, "renew", None) if holds_places(algorithm) else None
    run = iter(range(10**9))
    asked = st.tuples(st.integers(0, SECOND_US), st.integers(0, 7), st.sampled_from("ab"))

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(algorithm.examples), st.lists(asked, max_size=16))
    def same(options: dict[str, Any], history: list[tuple[int, int, str]]) -> None:
        meter = _meter(f"same{next(run)}", algorithm, **options)
        states: dict[str, State | None] = {}
        now = BEGIN_US
        charged: dict[str, int] = {}
        for step, (gap, cost, key) in enumerate(history):
            now += gap
            state = states.get(key)
            if step % 4 == 3 and key in charged and state is not None:
                at = charged[key]
                store.refund([Charge(meter, key)], at, now)
                states[key] = state = algorithm.refund(state, meter.params, 1, at, now)
            elif step % 4 == 2 and key in charged and renew is not None:
                places: Any = algorithm
                after, moment = places.renew(state, meter.params, 1, charged[key], now)
                found = renew(Charge(meter, key), charged[key], now)
                assert found == moment, f"{algorithm.code}: renewed as {found}, not {moment}"
                if moment:
                    states[key], charged[key], state = after, moment, after
            after, outcome = algorithm.decide(state, meter.params, cost, now)
            if outcome[0] and not reports_more_after:
                outcome = (True, outcome[1], 0, *outcome[3:])
            wanted = Decision(outcome, meter.params.limit, key, cost, now)
            if cost and outcome[0]:
                charged[key] = charged_at(meter, wanted)
            if cost:
                states[key] = after
            (found,) = store.decide([Charge(meter, key, cost)], now)
            assert found == wanted, f"{algorithm.code}: the store says {found}, not {wanted}"

    same()
    store.close()


def _bound_is_the_same(open_store: Callable[[], Store], algorithm: Algorithm) -> None:
    store, clock = open_store(), FakeClock(BEGIN_US)
    for number, options in enumerate(algorithm.examples):
        meters = [_meter(f"{name}{number}", algorithm, **options) for name in ("slow", "fast")]
        take = store.bind(meters[1], clock)
        for step in range(40):
            clock.advance((step % 7) * 0.05)
            key, cost = ("a", "b" * 600)[step % 3 == 0], step % 4
            (decided,) = store.decide([Charge(meters[0], key, cost)], clock())
            bound = take(key, cost)
            assert bound == decided, f"{algorithm.code}: bound it says {bound}, not {decided}"
    store.close()


def _wrong_costs_are_refused(open_store: Callable[[], Store]) -> None:
    store, meter = open_store(), _some_meter()
    take = store.bind(meter, FakeClock(BEGIN_US))
    wrong: tuple[Any, ...] = (-1, 1.0, True, 2**53)
    for cost in wrong:
        for ask in (lambda: take("k", cost), lambda: store.decide([Charge(meter, "k", cost)])):  # noqa: B023
            try:
                ask()
            except CostError:
                continue
            raise AssertionError(f"a cost of {cost!r} is accepted")
    store.close()


def _all_or_nothing(
    open_store: Callable[[], Store], algorithm: Algorithm, beside: Algorithm
) -> None:
    store = open_store()
    wide = Charge(_meter("wide", beside, rpu=50), "k")
    both = [wide, Charge(_meter("narrow", algorithm, rpu=1), "k")]
    while all(store.decide(both, BEGIN_US)):
        pass
    before = store.peek([wide], BEGIN_US)
    denied, passing = store.decide(both[::-1], BEGIN_US)
    assert passing, "a limit with room beside one without does not say so"
    assert not denied, "a limit without room says it has some"
    assert store.peek([wide], BEGIN_US) == before, "a denied request was charged"
    assert passing.remaining == before[0].remaining + 1, "remaining counts a charge not made"
    store.close()


def _exact_under_threads(open_store: Callable[[], Store], algorithm: Algorithm) -> None:
    store = open_store()
    meter = _meter("threads", algorithm, rpu=100)
    passed: list[Decision] = []

    def push() -> None:
        for _ in range(100):
            passed.extend(filter(None, store.decide([Charge(meter, "k")], BEGIN_US)))

    threads = [Thread(target=push) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(passed) == meter.params.limit, f"{len(passed)} of {meter.params.limit} passed"
    store.close()


def _some_meter(rpu: int = 2, name: str = "some") -> Meter:
    return _meter(name, algorithms()["TB"], rpu)


def _nothing_asked_is_nothing_said(open_store: Callable[[], Store]) -> None:
    store = open_store()
    assert store.decide([], BEGIN_US) == [], "a request that no rule covers is decided"
    assert store.peek([], BEGIN_US) == [], "a request that no rule covers is decided"
    store.close()


def _keys_are_apart(open_store: Callable[[], Store]) -> None:
    store, meter = open_store(), _some_meter(rpu=1)
    for key in ODD_KEYS:
        (first,) = store.decide([Charge(meter, key)], BEGIN_US)
        (second,) = store.decide([Charge(meter, key)], BEGIN_US)
        assert first, f"{key[:9]!r} shares a counter"
        assert not second, f"{key[:9]!r} is not counted"
        assert second.key == key, "a decision names another key than was asked"
    store.close()


def _limits_are_apart(open_store: Callable[[], Store], known: Sequence[Algorithm]) -> None:
    store = open_store()
    for algorithm in known:
        for name in ("a", "b", "a|TB"):
            meter = _meter(name, algorithm, rpu=1)
            assert all(store.decide([Charge(meter, "k")], BEGIN_US)), f"{meter.id} is shared"
    store.close()


def _edits_keep_the_count(open_store: Callable[[], Store]) -> None:
    store = open_store()
    assert all(store.decide([Charge(_some_meter(5), "k", 5)], BEGIN_US))
    (lower,) = store.decide([Charge(_some_meter(3), "k")], BEGIN_US)
    (higher,) = store.decide([Charge(_some_meter(7), "k")], BEGIN_US)
    assert not lower, "a lowered limit forgot what was counted"
    assert higher.allowed, "a raised limit has no more room"
    assert higher.remaining == 1, "a raised limit forgot what was counted"
    store.close()


def _peek_and_zero_write_nothing(open_store: Callable[[], Store]) -> None:
    store, meter = open_store(), _some_meter()
    for _ in range(3):
        (peeked,) = store.peek([Charge(meter, "k")], BEGIN_US)
        (nothing,) = store.decide([Charge(meter, "k", 0)], BEGIN_US)
        assert (peeked.remaining, nothing.remaining) == (1, 2), "a look was charged"
    store.close()


def _refund_and_reset(open_store: Callable[[], Store]) -> None:
    store, meter = open_store(), _some_meter()
    charge = [Charge(meter, "k", 2)]
    assert all(store.decide(charge, BEGIN_US))
    store.refund(charge, BEGIN_US, BEGIN_US)
    assert all(store.decide(charge, BEGIN_US)), "a refund gives nothing back"
    store.reset(meter, "k")
    assert all(store.decide(charge, BEGIN_US)), "a reset forgets nothing"
    store.refund([Charge(meter, "unheard of")], BEGIN_US, BEGIN_US)
    store.reset(meter, "unheard of")
    store.close()
