"""A zone never grows: when it is full the idle go first, the blocked last, of the limit that uses most."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from diana import ConfigError
from diana.core.charge import Charge
from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.limit import ConcurrencyLimit, Limit
from diana.runtime.entry_points import algorithms
from diana.stores.zone.python.python_zone import PythonZone
from diana.stores.zone.python.zone_layout import MOST_LIMITS, Layout
from diana.stores.zone.zone_file import open_zone_file
from diana.stores.zone.zone_header import BODY
from diana.stores.zone.zone_size import SMALLEST_SIZE
from tests.stores.shared.soundness import check_soundness
from tests.stores.shared.zones import zone_name

BEGIN_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US


@pytest.fixture
def zone() -> Iterator[PythonZone]:
    with zone_name() as name:
        yield PythonZone(open_zone_file(name, "python", SMALLEST_SIZE, PythonZone.lay_out))


def meter(name: str, rpu: int = 10, code: str = "TB", unit_us: int = HOUR_US) -> CounterSpec:
    return meter_from_limit(name, Limit(rpu, unit_us), algorithms()[code], {})


def flood(zone: PythonZone, limit: CounterSpec, many: int, now: int, prefix: str = "flood") -> None:
    for number in range(many):
        assert all(zone.decide([Charge(limit, f"{prefix}{number}")], now))


def test_a_flood_of_keys_pushes_out_its_own_kind_and_nothing_else(zone: PythonZone) -> None:
    quiet, loud = meter("quiet"), meter("loud")
    for number in range(200):
        zone.decide([Charge(quiet, f"client{number}", 4)], BEGIN_US)
    slots = zone.counts()["slots"]
    flood(zone, loud, slots + 1_000, BEGIN_US)
    counts = zone.counts()
    assert counts["used"] == slots
    assert counts["evictions"] == 1_200
    for number in range(200):
        assert zone.peek([Charge(quiet, f"client{number}", 0)], BEGIN_US)[0].remaining == 6
    check_soundness(zone)


def test_the_blocked_are_the_last_to_go(zone: PythonZone) -> None:
    limit = meter("login", 5)
    blocked = [f"blocked{number}" for number in range(500)]
    for key in blocked:
        zone.decide([Charge(limit, key, 5)], BEGIN_US)
    flood(zone, limit, 2 * zone.counts()["slots"], BEGIN_US)
    assert not any(zone.peek([Charge(limit, key)], BEGIN_US)[0] for key in blocked)


def test_even_if_all_are_blocked_a_new_key_is_counted(zone: PythonZone) -> None:
    limit = meter("login", 1)
    flood(zone, limit, zone.counts()["slots"] + 100, BEGIN_US)
    assert not zone.decide([Charge(limit, f"flood{zone.counts()['slots'] + 99}")], BEGIN_US)[0]
    check_soundness(zone)


def test_what_has_expired_is_forgotten_by_those_that_come_later(zone: PythonZone) -> None:
    short, long = meter("short", unit_us=SECOND_US), meter("long")
    flood(zone, short, 3_000, BEGIN_US)
    zone.decide([Charge(long, "stays", 3)], BEGIN_US)
    flood(zone, long, 3_000, BEGIN_US + 120 * SECOND_US, "later")
    assert zone.counts()["keys"] == 3_001
    assert zone.counts()["evictions"] == 0


def test_a_key_of_a_limit_that_was_edited_to_be_slower_is_not_forgotten_too_soon(
    zone: PythonZone,
) -> None:
    zone.decide([Charge(meter("edited", 10, unit_us=SECOND_US), "k", 10)], BEGIN_US)
    slow = meter("edited", 1, unit_us=SECOND_US)
    zone.decide([Charge(slow, "k", 1)], BEGIN_US)
    limit = meter("other")
    flood(zone, limit, 4_000, BEGIN_US + 500_000, "sweeping")
    assert not zone.decide([Charge(slow, "k")], BEGIN_US + 500_000)[0]


def test_long_logs_make_room_for_each_other(zone: PythonZone) -> None:
    limit = meter("log", 10_000, "SL")
    for number in range(15):
        zone.decide([Charge(limit, f"k{number}")], BEGIN_US)
        for step in range(1, 1_000):
            zone.decide([Charge(limit, f"k{number}")], BEGIN_US + step)
    assert zone.counts()["evictions"] == 0
    flood(zone, meter("loud"), 40_000, BEGIN_US)
    check_soundness(zone)
    assert zone.counts()["evictions"] > 0


def test_limits_beyond_those_counted_apart_are_counted_together(zone: PythonZone) -> None:
    limits = [meter(f"limit{number}", 2) for number in range(MOST_LIMITS + 50)]
    for limit in limits:
        assert all(zone.decide([Charge(limit, "k", 2)], BEGIN_US))
    assert not any(zone.decide([Charge(limit, "k")], BEGIN_US)[0] for limit in limits)
    assert zone.limits()[-1] == ("all others", 51)
    check_soundness(zone)


def test_the_number_of_a_limit_without_keys_is_given_to_another(zone: PythonZone) -> None:
    for number in range(3 * MOST_LIMITS):
        limit = meter(f"limit{number}", 2)
        zone.decide([Charge(limit, "k", 2)], BEGIN_US)
        assert not zone.decide([Charge(limit, "k")], BEGIN_US)[0]
        zone.reset(limit, "k")
    assert zone.limits() == []
    check_soundness(zone)


def test_a_log_that_is_too_long_is_refused_at_load(zone: PythonZone) -> None:
    zone.bind(meter("fits", 10_000, "SL"))
    with pytest.raises(ConfigError, match=r"at most 10,000 entries of a log, and 10001/hour"):
        zone.bind(meter("does not", 10_001, "SL"))
    with pytest.raises(ConfigError, match=r"at most 10,000 places of a key, and 10001 at once"):
        zone.bind(
            meter_from_limit("places", ConcurrencyLimit(10_001, SECOND_US), algorithms()["C"], {})
        )


@pytest.mark.parametrize("seed", range(12))
def test_a_zone_full_of_garbage_is_emptied_and_counts(
    zone: PythonZone, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = random.Random(seed)
    charges = [
        Charge(meter("bucket", 2), "k"),
        Charge(meter("log", 3, "SL"), "k"),
        Charge(meter("ring", 4, "SW"), "k"),
    ]
    for _ in range(3):
        zone.decide(charges, BEGIN_US)
    layout: Layout = zone._layout
    if seed % 2:
        begin = chosen.choice([layout.owners, layout.heads * 4, layout.first_slot, BODY])
        layout.mapping[begin : begin + 100_000] = chosen.randbytes(100_000)
    else:
        layout.mapping[BODY:] = os.urandom(len(layout.mapping) - BODY)
    flood(zone, meter("other"), 50, BEGIN_US)
    zone.clear()
    for _ in range(3):
        zone.decide(charges, BEGIN_US)
    assert not zone.decide(charges, BEGIN_US)[0]
    check_soundness(zone)
