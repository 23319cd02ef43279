"""A process may be killed, or interrupted by an exception, anywhere inside a zone: what comes after finds it in order."""

from __future__ import annotations

import gc
import linecache
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from diana.core.charge import Charge
from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.limit import Limit
from diana.runtime.entry_points import algorithms
from diana.stores.zone.python.python_zone import PythonZone
from diana.stores.zone.zone_file import open_zone_file
from diana.stores.zone.zone_size import SMALLEST_SIZE
from tests.stores.shared.soundness import check_soundness
from tests.stores.shared.zones import zone_name

BEGIN_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
NEVER_STRUCK = (
    "try:",
    "finally:",
    "for locked in self._acquiring:",
    "if not locked:",
    "for _ in lock.waited if longs[waiting] else lock.tried:",
    "self._release()",
    "lock.release()",
)
"""The interpreter looks for signals after calls and jumps back, not between taking a lock and the `try`, nor before its release."""


class Struck(Exception):
    pass


NEVER = 10**9
MOST_STEPS = 60


def struck_at(step: int, action: Callable[[], object]) -> bool:
    """Whether the action was interrupted, before its so many-th line in the zone."""
    return step - lines_until_struck(step, action) == 0


def lines_until_struck(step: int, action: Callable[[], object]) -> int:
    left = step

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if "/stores/zone/" not in frame.f_code.co_filename:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and line not in NEVER_STRUCK:
            left -= 1
            if left == 0:
                raise Struck
        return trace

    # The collector would finalize zones of earlier tests in between: that is a zone's code too, and Python ignores what is raised there.
    gc.disable()
    sys.settrace(trace)
    try:
        action()
    except Struck:
        pass
    finally:
        sys.settrace(None)
        gc.enable()
    return step - left


@pytest.fixture
def zone() -> Iterator[PythonZone]:
    with zone_name() as name:
        yield PythonZone(open_zone_file(name, "python", SMALLEST_SIZE, PythonZone.lay_out))


def meter(name: str, code: str, rpu: int = 50, **options: Any) -> CounterSpec:
    return meter_from_limit(name, Limit(rpu, SECOND_US), algorithms()[code], options)


Action = Callable[[PythonZone], object]
LOG = meter("log", "SL", 60)
MIXED = [
    Charge(meter("bucket", "TB"), "k", 3),
    Charge(meter("ring", "SW", slices=40), "k"),
    Charge(LOG, "k", 2),
]


def fill_log(zone: PythonZone) -> None:
    for step in range(40):
        zone.decide([Charge(LOG, "k")], BEGIN_US + step)


ACTIONS: dict[str, tuple[Action, Action]] = {
    "first charge": (lambda _: None, lambda zone: zone.decide(MIXED, BEGIN_US)),
    "next charge": (
        lambda zone: zone.decide(MIXED, BEGIN_US),
        lambda zone: zone.decide(MIXED, BEGIN_US + 7),
    ),
    "one charge": (
        lambda zone: zone.decide(MIXED[:1], BEGIN_US),
        lambda zone: zone.decide(MIXED[:1], BEGIN_US + 7),
    ),
    "appending to a log": (
        fill_log,
        lambda zone: zone.decide([Charge(LOG, "k")], BEGIN_US + 41),
    ),
    "a log that expires": (
        fill_log,
        lambda zone: zone.decide([Charge(LOG, "k")], BEGIN_US + SECOND_US + 30),
    ),
    "a log that is struck": (
        fill_log,
        lambda zone: zone.refund([Charge(LOG, "k")], BEGIN_US + 5, BEGIN_US + 50),
    ),
    "refund": (
        lambda zone: zone.decide(MIXED, BEGIN_US),
        lambda zone: zone.refund(MIXED, BEGIN_US, BEGIN_US),
    ),
    "reset": (fill_log, lambda zone: zone.reset(LOG, "k")),
    "forgetting": (
        lambda zone: [zone.decide(MIXED, BEGIN_US), *map(zone.decide, [[Charge(LOG, "k")]] * 30)],
        lambda zone: zone.decide([Charge(meter("bucket", "TB"), "new")], BEGIN_US + 100 * SECOND_US),
    ),
}  # fmt: skip


def contents(zone: PythonZone) -> list[Any]:
    return [zone.peek([charge], BEGIN_US + 50)[0] for charge in MIXED]


@pytest.mark.parametrize("case", ACTIONS)
def test_interrupted_anywhere_the_zone_is_whole_and_nothing_or_all_has_happened(
    case: str, zone: PythonZone
) -> None:
    prepare, action = ACTIONS[case]
    prepare(zone)
    before = contents(zone)
    zone.clear()
    prepare(zone)
    lines = lines_until_struck(NEVER, lambda: action(zone))
    after = contents(zone)
    for step in range(1, lines, max(1, lines // MOST_STEPS)):
        zone.clear()
        prepare(zone)
        if not struck_at(step, lambda: action(zone)):
            break  # by now it knows the limits, and is through sooner
        check_soundness(zone)
        found = contents(zone)
        if case == "refund":  # each charge is given back by itself
            assert all(each in both for each, *both in zip(found, before, after, strict=True))
        else:
            assert found in (before, after), step
    assert step > 10


def test_interrupted_while_it_is_emptied_it_is_empty(zone: PythonZone) -> None:
    begun = 0
    for step in range(1, lines_until_struck(NEVER, zone.clear)):
        zone.decide(MIXED, BEGIN_US)
        fill_log(zone)
        struck_at(step, zone.clear)
        has_begun = zone._layout.longs[zone._layout.undo_count] != 0
        check_soundness(zone)
        begun += has_begun
        assert zone.counts()["keys"] == (0 if begun else len(MIXED))
    assert begun > 5
