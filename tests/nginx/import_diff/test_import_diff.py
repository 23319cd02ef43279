"""Imported rules allow and deny what the real nginx allows and denies, or a note says what differs."""

from __future__ import annotations

import pytest

from tests.nginx.import_diff.comparison import Totals, compare

FIRST = 20_000
PART = 25


@pytest.mark.parametrize("part", range(4))
def test_a_configuration_without_notes_limits_as_nginx(part: int) -> None:
    start = FIRST + part * PART
    totals = Totals(map(compare, range(start, start + PART)))
    assert not totals.wrong, f"{totals}\n{totals.wrong[0]}"
    assert totals.configurations == PART
    assert totals.denied > totals.requests / 20
    assert totals.noted <= PART * 0.6
