"""A Log is a value: whatever is made from it, it stays what it was; and it says what a plain list would say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diana.core import entry_log as module
from diana.core.entry_log import NO_LOG, NO_MOMENT, Log, UnknownEntry, log_of, partial_log

STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 3), st.integers(1, 4)),
    st.tuples(st.just("after"), st.integers(-9, 2), st.just(0)),
    st.tuples(st.just("clamped"), st.integers(-6, 0), st.just(0)),
    st.tuples(st.just("strike"), st.integers(-9, 0), st.integers(0, 4)),
    st.tuples(st.just("again"), st.integers(0, 9), st.just(0)),
)


def plain(log: Log) -> list[int]:
    return [moment for moment, count in log.entries() for _ in range(count)]


def changed(verb: str, moment: int, count: int, log: Log, model: list[int]) -> Any:
    match verb:
        case "append":
            return log.append(moment, count), model + [moment] * count
        case "after":
            return log.after(moment), [one for one in model if one > moment]
        case "clamped":
            return log.clamped(moment), [min(one, moment) for one in model]
        case _:
            left = list(model)
            for _ in range(min(count, model.count(moment))):
                left.remove(moment)
            return log.strike(moment, count), left


@settings(max_examples=1_000, deadline=None, derandomize=True)
@given(st.lists(STEPS, max_size=40), st.sampled_from([0, 64]), st.sampled_from([0, 2**62]))
def test_it_says_what_a_list_says_and_no_older_one_changes(
    steps: list[tuple[str, int, int]], scrap: int, far: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SCRAP", scrap)
        patch.setattr(module, "FAR", far)
        made: list[tuple[Log, list[int]]] = [(NO_LOG, [])]
        for verb, step, count in steps:
            log, model = made[-1]
            if verb == "again":
                made.append(made[max(0, len(made) - 1 - step)])
                continue
            newest = model[-1] if model else 100
            made.append(changed(verb, newest + step, count, log, model))
        for log, model in made:
            assert plain(log) == model
            assert log.amount == len(model)
            assert log.newest == (model[-1] if model else NO_MOMENT)
            assert [log.nth(number + 1) for number in range(len(model))] == model
            for outside in (0, len(model) + 1):
                with pytest.raises(IndexError):
                    log.nth(outside)
            moments = [moment for moment, _ in log.entries()]
            assert len(set(moments)) == len(moments), "one moment is one entry"


def test_what_is_made_and_thrown_away_costs_no_copy() -> None:
    log = log_of((moment, 1) for moment in range(1_000))
    first = log.append(2_000, 1)
    for _ in range(10):
        assert log.append(2_000, 7).moments is first.moments


def test_dropped_entries_are_given_back() -> None:
    log = NO_LOG
    for moment in range(100_000):
        log = log.append(moment, 1).after(moment - 10)
        assert len(log.moments) <= 2 * module.SCRAP + 40
    assert log.amount == 10


def test_it_is_appended_to_in_order_and_not_with_nothing() -> None:
    with pytest.raises(ValueError, match="5 is before 7"):
        log_of([(7, 1)]).append(5, 1)
    with pytest.raises(ValueError, match="0 cannot be appended"):
        NO_LOG.append(5, 0)


def test_an_entry_half_written_by_an_interrupt_is_not_believed() -> None:
    log = log_of([(1, 1), (2, 1), (3, 1)])
    log.moments.append(3)
    assert plain(log.append(9, 2)) == [1, 2, 3, 9, 9]


def test_a_part_says_what_the_whole_says_or_nothing() -> None:
    whole = log_of([(1, 2), (3, 1), (4, 1), (8, 5), (9, 1)])
    part = partial_log([(1, 2), (3, 1)], 9, 7)
    for moment in range(-1, 12):
        try:
            found = part.after(moment)
        except UnknownEntry:
            assert 3 <= moment < 9
            continue
        wanted = whole.after(moment)
        assert (found.amount, found.newest) == (wanted.amount, wanted.newest)
        for number in range(1, found.amount + 1):
            try:
                assert found.nth(number) == wanted.nth(number)
            except UnknownEntry:
                assert wanted.nth(number) > 3
    for verb, argument in ((part.append, 9), (part.strike, 1)):
        with pytest.raises(UnknownEntry):
            verb(argument, 1)
    with pytest.raises(UnknownEntry):
        part.clamped(5)
    assert part.clamped(9) is part
