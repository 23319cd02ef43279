"""How long counters in memory and in zones live: as long as the slowest limit needs that counts on them, and half a minute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from diana import Limiter
from diana.core.charge import Charge
from diana.core.contracts import Store
from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.limit import ConcurrencyLimit, Limit
from diana.runtime.entry_points import algorithms
from diana.stores.c_kernels import kernels
from diana.stores.memory.python_store import PythonMemoryStore as InPython
from diana.stores.zone.store import SharedStore
from diana.testing import FakeClock
from tests.stores.shared.zones import zone_name

BEGIN_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
KINDS = ["memory in Python", "zone in Python"]
if kernels() is not None:
    KINDS += ["memory in C", "zone in C"]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        if request.param == "memory in Python":
            yield InPython()
        elif request.param == "memory in C":
            from diana.stores.memory.c_store import CMemoryStore

            yield CMemoryStore()
        else:
            if request.param == "zone in Python":
                patch.setenv("DIANA_NATIVE", "0")
            zone = SharedStore(stack.enter_context(zone_name()), 1 << 20)
            yield zone
            zone.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(BEGIN_US)


def let_others_pass(limiter: Limiter, clock: FakeClock) -> None:
    """Enough of them to look at every key whose time has come."""
    for number in range(300):
        limiter.take(f"stranger {number}")


def meter(code: str, rpu: int, unit_us: int = HOUR_US, **options: Any) -> CounterSpec:
    kind = ConcurrencyLimit if code == "C" else Limit
    return meter_from_limit("calls", kind(rpu, unit_us), algorithms()[code], options)


@pytest.mark.parametrize(
    ("of_slow", "of_fast"),
    [
        (("1/hour", {}), ("1000/hour", {})),
        (("1 at once", {"hold": "1h"}), ("1 at once", {"hold": "1s"})),
    ],
    ids=["rates", "holds"],
)
def test_a_limiter_made_later_does_not_forget_for_a_slower_one(
    of_slow: tuple[str, dict[str, Any]],
    of_fast: tuple[str, dict[str, Any]],
    store: Store,
    clock: FakeClock,
) -> None:
    """Both are bound to the store before either is asked."""
    slow, fast = (
        Limiter(spelling, store=store, name="calls", clock=clock, **options)
        for spelling, options in (of_slow, of_fast)
    )
    assert slow.take("alice")
    clock.advance(40)
    let_others_pass(fast, clock)
    denial = slow.take("alice")
    assert not denial
    assert denial.reset_after == 3_560


@pytest.mark.parametrize("first", ["slow", "fast"])
def test_a_faster_limiter_that_charges_the_key_does_not_shorten_its_life(
    store: Store, clock: FakeClock, first: str
) -> None:
    """Nor if it was the one to make it, so that the key is looked at soon."""
    slow = Limiter("1/hour", burst=2, store=store, name="calls", clock=clock)
    fast = Limiter("1000/hour", store=store, name="calls", clock=clock)
    if first == "fast":
        assert fast.take("alice")
        clock.advance(10)
    assert slow.take("alice")
    assert fast.take("alice")
    clock.advance(300)
    let_others_pass(fast, clock)
    denial = slow.take("alice")
    assert not denial
    assert denial.retry_after is not None
    clock.advance(denial.retry_after)
    assert slow.take("alice")


@pytest.mark.parametrize("together", [False, True], ids=["alone", "beside another"])
def test_what_a_slower_version_of_the_rules_was_told_holds(
    store: Store, clock: FakeClock, together: bool
) -> None:
    slow, fast = meter("TB", 1), meter("TB", 1_000)
    beside = meter_from_limit("beside", Limit(1_000, SECOND_US), algorithms()["TB"], {})
    others = [Charge(beside, "k")] if together else []
    strangers = Limiter("1000/hour", store=store, name="calls", clock=clock)
    assert all(store.decide([Charge(fast, "alice"), *others], clock()))
    (denial, *_) = store.decide([Charge(slow, "alice"), *others], clock())
    assert not denial
    clock.advance(300)
    let_others_pass(strangers, clock)
    assert not all(store.decide([Charge(slow, "alice"), *others], clock()))


def test_a_shorter_hold_does_not_end_a_place_of_a_longer_one(
    store: Store, clock: FakeClock
) -> None:
    long, short = meter("C", 1), meter("C", 1, SECOND_US)
    assert store.decide([Charge(long, "alice")], clock())[0]
    for number in range(50):
        clock.advance(10)
        store.decide([Charge(short, f"stranger {number}")], clock())
    assert not store.decide([Charge(long, "alice")], clock())[0]


def test_after_an_edit_keys_are_forgotten_as_the_new_limit_says(
    store: Store, clock: FakeClock
) -> None:
    """Not as the slowest that ever was: the memory would fill with keys that matter to no limit."""
    slow = Limiter("1/hour", store=store, name="calls", clock=clock)
    let_others_pass(slow, clock)
    fast = Limiter("1000/hour", store=store, name="calls", clock=clock)
    fast.take("first")
    clock.advance(2 * 3_600)
    for number in range(500):
        fast.take(f"client {number}")
        clock.advance(1)
    assert keys_of(store) < 200


@pytest.mark.parametrize("code", ["W", "TB", "SL"])
def test_half_a_minute_of_grace_when_a_key_is_looked_at_right_after_its_reset(
    store: Store, clock: FakeClock, code: str
) -> None:
    """A clock that is set back by a moment finds the key as it was."""
    limiter = Limiter("1/minute", store=store, algo=code, name="calls", clock=clock)
    assert limiter.take("alice")
    # Looked at in vain half a minute after its first reset: it was charged again meanwhile.
    clock.advance(61)
    assert limiter.take("alice")
    clock.advance(60 + 0.05 - clock() / SECOND_US % 60 if code == "W" else 60.05)
    let_others_pass(limiter, clock)
    clock.advance(-0.1)
    assert not limiter.take("alice")
    clock.advance(0.1)
    assert limiter.take("alice")


def keys_of(store: Store) -> int:
    counts = getattr(store, "counts", None)
    return len(store) if counts is None else counts()["keys"]  # type: ignore[arg-type]
