"""A part of `make fuzz` that is always the same: a run of the suite does not depend on chance. New seeds are for `make fuzz`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.session import Session, session
from tests.servers.server import Server

HISTORIES = 600
"""In each of the tests; about ten seconds."""


@pytest.fixture(scope="module")
def opened(redis7: Server, valkey: Server) -> Iterator[Session]:
    with session({"Redis 7": redis7, "Valkey 9": valkey}) as opened:
        yield opened


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_all_back_ends_decide_alike_and_keep_the_laws(seed: int, opened: Session) -> None:
    invalid = opened.invalid
    for number in range(HISTORIES):
        failure = opened.run(seed, number)
        assert failure is None, str(failure)
    assert opened.invalid - invalid < HISTORIES // 10, "too few histories can be run"


def test_in_real_time_each_back_end_decides_as_its_model(opened: Session) -> None:
    failure = opened.run_in_real_time(6, 0)
    assert failure is None, str(failure)
