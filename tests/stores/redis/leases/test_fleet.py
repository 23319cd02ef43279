"""Real processes on a real server: the limit holds in every interval, whatever the machine is doing beside."""

from __future__ import annotations

import pytest

from tests.servers.programs import PROGRAMS
from tests.servers.server import Server
from tests.stores.redis.leases.fleet import Admission, lease, most_above_rate, most_within

RPU = 1_500


def test_a_sliding_window_never_lets_more_than_the_limit_pass_in_any_second() -> None:
    with Server(PROGRAMS["Valkey 9"]) as server:
        run = lease(server.url, "SW", RPU, seconds=3.4)
    assert most_within(run.admissions, 1.0) <= RPU
    assert len(run.admissions) > RPU
    assert run.degraded == 0
    assert len(run.nodes[0].admissions) > len(run.nodes[2].admissions), "they go where the load is"
    assert not run.nodes[3].admissions


def test_a_token_bucket_never_lets_more_pass_than_its_burst_and_rate() -> None:
    with Server(PROGRAMS["Valkey 9"]) as server:
        run = lease(server.url, "TB", RPU, seconds=3.0)
    assert most_above_rate(run.admissions, RPU) <= RPU
    assert len(run.admissions) > RPU
    assert run.degraded == 0


def test_what_is_measured_would_show_too_much() -> None:
    together = [Admission(number / 1_000, number / 1_000) for number in range(2_000)]
    assert most_within(together, 1.0) == pytest.approx(1_000, abs=1)
    assert most_above_rate(together, 900) == pytest.approx(201, abs=1)
    long = [Admission(0.0, 2.0)] * 10
    assert most_within(long, 1.0) == 0, "nothing is certain"
