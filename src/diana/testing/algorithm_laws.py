"""The laws that make an algorithm trustworthy, checked on random histories (with hypothesis).

1. Whole: integers in and out. 2. Denial is free. 3. Retry is exact. 4. Forgetting is safe. 5. Costs add. 6. Bounded. 7. Refund undoes
a charge at the same instant, also if the clock was set back by up to a second before it; later it never gives more than never having
charged; the charges that remain are bounded as in 6. And a cost of 0 always passes.

For algorithms that hold places (`uses_slots`) the third law is another: a place is free as soon as one is given back. A denial names no
time (or what an option says); with as many places given back as it lacks, it passes. A place that is given back twice is given back once;
one that is renewed counts as if it were taken now; one that is neither runs off. And costs add in number: each charge has a moment of its
own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from diana.core.charge import WHOLE
from diana.core.contracts import Algorithm, State
from diana.core.decision import NEVER, UNKNOWN, Outcome
from diana.core.duration import SECOND_US
from diana.core.entry_log import Log
from diana.core.errors import ConfigError
from diana.core.limit import Limit, uses_slots

BEGIN_US = 1_700_000_000_000_000
UNITS_US = (1_000, 1_000_000, 7_000_000, 60_000_000, 86_400_000_000)


class History(NamedTuple):
    """A limit and what was asked of it: (gap to the one before, cost)."""

    limit: Limit
    options: Mapping[str, Any]
    begin_us: int
    asked: list[tuple[int, int]]
    probe: int


class Moment(NamedTuple):
    """One charge: the state it found, the state it left."""

    now: int
    cost: int
    before: State | None
    after: State | None
    outcome: Outcome


def algorithm_laws(algorithm: Algorithm, *, examples: int = 200) -> None:
    """Raise AssertionError with the smallest history that breaks a law."""
    check_needs()
    from hypothesis import HealthCheck, given, settings

    for options in algorithm.examples:

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,  # the same histories every time: a test that fails only sometimes is no test
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        @given(_histories(options))
        def laws_hold(history: History) -> None:
            _check(algorithm, history)

        laws_hold()


def check_needs() -> None:
    """Raise an error that says what to do, if the laws cannot be checked here."""
    try:
        import hypothesis  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigError(
            "diana.testing needs the package hypothesis, which is not installed; run pip install 'diana-limiter[testing]'"
        ) from None
    if not __debug__:
        raise RuntimeError(
            "python -O switches off the assertions that check the laws; run without it"
        )


def _histories(options: Mapping[str, Any]) -> Any:
    from hypothesis import strategies as st

    @st.composite
    def histories(draw: st.DrawFn) -> History:
        unit_us = draw(st.sampled_from(UNITS_US))
        rpu = draw(st.one_of(st.integers(1, 12), st.sampled_from((97, 1_000, 999_983))))
        pace = max(1, unit_us // rpu)
        gaps = st.one_of(
            st.just(0),
            st.integers(1, 3),
            st.integers(0, 2 * pace),
            st.sampled_from((pace - 1, pace, pace + 1, unit_us - 1, unit_us, unit_us + 1)),
            st.integers(0, 2 * unit_us),
        )
        costs = st.one_of(st.just(1), st.integers(0, 4), st.integers(1, 2 * rpu + 1))
        asked = draw(st.lists(st.tuples(gaps, costs), min_size=1, max_size=24))
        begin_us = BEGIN_US + draw(st.integers(0, 2 * unit_us))
        probe = draw(st.integers(0, 2 * unit_us))
        return History(Limit(rpu, unit_us), options, begin_us, asked, probe)

    return histories()


def _check(algorithm: Algorithm, history: History) -> None:
    try:
        params = algorithm.params(history.limit, **history.options)
    except ConfigError:
        return
    moments = _lived(algorithm, params, history)
    places = uses_slots(algorithm)
    left = [_numbers(moment.after) for moment in moments]
    for moment in moments:
        _whole(moment)
        _denial_is_free(moment)
        _zero_passes(algorithm, params, moment)
        _forgetting_is_safe(algorithm, params, moment, history.probe)
        _refund_undoes(algorithm, params, moment, history.probe)
        _refund_undoes_after_a_step_back(algorithm, params, moment, history.probe)
        if places:
            _costs_add_in_number(algorithm, params, moment)
            _renewed_is_taken_now(algorithm, params, moment, history.probe)
        else:
            _retry_is_exact(algorithm, params, moment)
            _costs_add(algorithm, params, moment)
    if places:
        _free_when_given_back(algorithm, params, moments)
    else:
        _bounded_after_refunds(algorithm, params, history)
    _bounded(algorithm, params, moments)
    for moment, numbers in zip(moments, left, strict=True):
        assert _numbers(moment.after) == numbers, f"a state was changed, not replaced: {moment}"


def _lived(algorithm: Algorithm, params: Any, history: History) -> list[Moment]:
    moments: list[Moment] = []
    state: State | None = None
    now = history.begin_us
    for gap, cost in history.asked:
        now += gap
        after, outcome = algorithm.decide(state, params, cost, now)
        moments.append(Moment(now, cost, state, after, Outcome(*outcome)))
        state = after if cost else state
    return moments


def _whole(moment: Moment) -> None:
    assert moment.outcome.allowed.__class__ is bool, f"allowed is no bool: {moment}"
    for number in (*moment.outcome[1:], *_numbers(moment.after)):
        assert number.__class__ is int, f"{number!r} is no int: {moment}"
        assert -WHOLE < number < WHOLE, f"{number} is out of range: {moment}"


def _numbers(state: State | None) -> tuple[int, ...]:
    """All numbers of a state, however it holds them."""
    if isinstance(state, Log):
        return tuple(number for entry in state.entries() for number in entry)
    return state or ()


def _denial_is_free(moment: Moment) -> None:
    if not moment.outcome.allowed:
        assert moment.after is moment.before, f"a denial changed the state: {moment}"


def _zero_passes(algorithm: Algorithm, params: Any, moment: Moment) -> None:
    assert algorithm.decide(moment.after, params, 0, moment.now)[1][0], f"0 denied: {moment}"


def _retry_is_exact(algorithm: Algorithm, params: Any, moment: Moment) -> None:
    now, cost, before, _, outcome = moment
    if outcome.allowed:
        _more_is_exact(algorithm, params, moment)
    elif outcome.retry_after_us == NEVER:
        assert cost > params.limit, f"a cost that can pass is refused for ever: {moment}"
    else:
        due = now + outcome.retry_after_us
        assert due > now, f"denied, yet due at once: {moment}"
        assert algorithm.decide(before, params, cost, due)[1][0], f"denied when due: {moment}"
        early = algorithm.decide(before, params, cost, due - 1)[1][0]
        assert not early, f"passes before it is due: {moment}"


def _more_is_exact(algorithm: Algorithm, params: Any, moment: Moment) -> None:
    """If an allowed charge says when more would pass, it is then and not before."""
    more_us = moment.outcome.retry_after_us
    assert more_us >= 0, f"more passes in the past: {moment}"
    if more_us:
        state, due = moment.after if moment.cost else moment.before, moment.now + more_us
        early, late = [algorithm.decide(state, params, 0, now)[1][1] for now in (due - 1, due)]
        assert early == moment.outcome.remaining < late, f"{early}, then {late}: {moment}"


def _forgetting_is_safe(algorithm: Algorithm, params: Any, moment: Moment, probe: int) -> None:
    forgotten = moment.now + moment.outcome.reset_after_us
    state = moment.after if moment.cost else moment.before
    for when in (forgotten, forgotten + probe):
        kept = _answers(algorithm, params, state, when)
        fresh = _answers(algorithm, params, None, when)
        assert kept == fresh, f"at {when} the state still matters: {moment}"


def _costs_add(algorithm: Algorithm, params: Any, moment: Moment) -> None:
    now, cost, before, after, outcome = moment
    if not (outcome.allowed and 1 < cost <= 50):
        return
    state = before
    for _ in range(cost):
        state, single = algorithm.decide(state, params, 1, now)
        assert single[0], f"{cost} pass at once but not one by one: {moment}"
    assert _numbers(state) == _numbers(after), (
        f"{cost} at once leave {after}, one by one {state}: {moment}"
    )


def _costs_add_in_number(algorithm: Algorithm, params: Any, moment: Moment) -> None:
    now, cost, before, _, outcome = moment
    if not (outcome.allowed and 1 < cost <= 50):
        return
    state = before
    for _ in range(cost):
        state, single = algorithm.decide(state, params, 1, now)
        assert single[0], f"{cost} pass at once but not one by one: {moment}"
    room = algorithm.decide(state, params, 0, now)[1][1]
    assert room == outcome.remaining, f"{cost} one by one leave room for {room}: {moment}"


def _free_when_given_back(algorithm: Any, params: Any, moments: list[Moment]) -> None:
    """Of the places that are taken, give back the oldest until the denied charge fits: not before, and no later."""
    taken: list[tuple[int, int]] = []
    for now, cost, before, _, outcome in moments:
        if outcome.allowed:
            if cost:
                at = algorithm.moment_of(params, outcome, now)
                assert all(at != other for other, _ in taken), f"two places of one moment: {at}"
                taken.append((at, cost))
            continue
        if cost > params.limit:
            assert outcome.retry_after_us == NEVER, f"it can never pass: {outcome}"
            continue
        assert outcome.retry_after_us != NEVER, f"it passes when places are free: {outcome}"
        assert outcome.retry_after_us in (UNKNOWN, getattr(params, "retry", UNKNOWN)), (
            f"no time can be told: {outcome}"
        )
        state, passes = before, False
        for at, held in taken:
            room = algorithm.decide(state, params, 0, now)[1][1]
            assert passes is (room >= cost), f"{room} free, and {cost} pass: {passes}"
            state = algorithm.refund(state, params, held, at, now)
            once = _answers(algorithm, params, state, now)
            state = algorithm.refund(state, params, held, at, now)
            twice = _answers(algorithm, params, state, now)
            assert once == twice, f"given back twice, it is twice free: {once} {twice}"
            passes = algorithm.decide(state, params, cost, now)[1][0]
        assert passes, f"all are given back, and it is denied: {moments}"


def _renewed_is_taken_now(algorithm: Any, params: Any, moment: Moment, later: int) -> None:
    now, cost, _, after, outcome = moment
    if not (outcome.allowed and cost):
        return
    at, then = algorithm.moment_of(params, outcome, now), now + later
    room = algorithm.decide(after, params, 0, then)[1][1]
    counted = algorithm.decide(algorithm.refund(after, params, cost, at, then), params, 0, then)
    renewed, since = algorithm.renew(after, params, cost, at, then)
    _, left, _, reset, _ = algorithm.decide(renewed, params, 0, then)[1]
    if since:
        assert left == counted[1][1] - cost, f"{left} free after renewing, not one held: {moment}"
        again = algorithm.moment_of(params, (True, left, 0, reset, 0), then)
        assert again == since, f"renewed as {since}, it runs off as {again}: {moment}"
        gone = algorithm.refund(renewed, params, cost, since, then)
        assert algorithm.decide(gone, params, 0, then)[1][1] == counted[1][1], (
            "not to be given back"
        )
    else:
        assert room < cost, f"there is room for {room}, and none is taken: {moment}"


def _bounded(algorithm: Algorithm, params: Any, moments: list[Moment]) -> None:
    admitted = [moment for moment in moments if moment.outcome.allowed]
    for first in range(len(admitted)):
        total = 0
        for last in admitted[first:]:
            total += last.cost
            interval = last.now - admitted[first].now + 1
            most = algorithm.promise(params, interval)
            assert total <= most, f"{total} in {interval} µs, promised {most}: {admitted}"


def _bounded_after_refunds(algorithm: Algorithm, params: Any, history: History) -> None:
    """Among charges that remain, refunded ones make no room for more than is promised."""
    remaining: list[Moment] = []
    state: State | None = None
    now = history.begin_us
    for step, (gap, cost) in enumerate(history.asked):
        now += gap
        if remaining and state is not None and (history.probe >> step) % 2:
            back = remaining.pop((history.probe + step) % len(remaining))
            state = algorithm.refund(state, params, back.cost, back.now, now)
        after, outcome = algorithm.decide(state, params, cost, now)
        if outcome[0] and cost:
            remaining.append(Moment(now, cost, state, after, Outcome(*outcome)))
            state = after
    _bounded(algorithm, params, remaining)


def _refund_undoes(algorithm: Algorithm, params: Any, moment: Moment, later: int) -> None:
    now, cost, before, after, outcome = moment
    if not (outcome.allowed and cost and after is not None):
        return
    at = _charged_at(algorithm, params, outcome, now)
    undone = algorithm.refund(after, params, cost, at, now)
    never = _answers(algorithm, params, before, now)
    assert _answers(algorithm, params, undone, now) == never, f"not undone: {undone} {moment}"
    then = now + later
    refunded = algorithm.refund(after, params, cost, at, then)
    room = [algorithm.decide(state, params, 0, then)[1][1] for state in (after, refunded, before)]
    assert room == sorted(room), f"refunded later, room is {room}: {moment}"


def _refund_undoes_after_a_step_back(
    algorithm: Algorithm, params: Any, moment: Moment, probe: int
) -> None:
    state = moment.after if moment.cost else moment.before
    most = SECOND_US
    if uses_slots(algorithm):
        # Places of one moment are a microsecond apart, so that the newest is further ahead.
        most -= 100
    for back in (1, 1 + probe % most, most):
        then = moment.now - back
        never = _answers(algorithm, params, state, then)
        charged, outcome = algorithm.decide(state, params, 1, then)
        if outcome[0] and charged is not None:
            at = _charged_at(algorithm, params, outcome, then)
            undone = _answers(
                algorithm, params, algorithm.refund(charged, params, 1, at, then), then
            )
            assert undone == never, f"charged {back} µs back and not undone: {charged} {moment}"


def _charged_at(
    algorithm: Algorithm, params: Any, outcome: tuple[bool, int, int, int, int], now: int
) -> int:
    moment_of = getattr(algorithm, "moment_of", None)
    return now if moment_of is None else int(moment_of(params, outcome, now))


def _answers(algorithm: Algorithm, params: Any, state: State | None, now: int) -> list[object]:
    """What a state would say to a few charges: two states with the same answers are the same to a caller."""
    answers: list[object] = []
    for cost in (0, 1, 1, params.limit, 1):
        after, outcome = algorithm.decide(state, params, cost, now)
        answers.append(tuple(outcome))
        state = after if cost else state
    return answers
