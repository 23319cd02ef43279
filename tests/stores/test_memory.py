"""The memory store: the contract, and what it forgets in which order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from threading import Barrier, Event, Thread
from typing import Any

import pytest

from diana import Limiter
from diana.core.charge import Charge
from diana.core.counter import meter_from_limit
from diana.core.errors import KeyTypeError
from diana.core.limit import Limit, uses_slots
from diana.runtime.entry_points import algorithms
from diana.stores.memory import MemoryStore, bounded_key
from diana.stores.memory.python_store import PythonMemoryStore as InPython
from diana.testing import FakeClock, store_contract

BEGIN_US = 1_700_000_000_000_000
MANY: dict[str, dict[str, Any]] = {"LB": {"burst": 49_999}}


def test_it_keeps_the_contract() -> None:
    store_contract(MemoryStore)


def a_day(number: int, code: str) -> str:
    """A limit as this algorithm counts: so many a day, or so many at once."""
    return f"{number} at once" if uses_slots(algorithms()[code]) else f"{number}/day"


@pytest.mark.parametrize("code", algorithms())
def test_eight_threads_never_admit_one_too_many(code: str) -> None:
    options: dict[str, Any] = MANY.get(code, {})
    limiter = Limiter(a_day(50_000, code), algo=code, clock=FakeClock(BEGIN_US), **options)
    passed = [0] * 8
    start = Barrier(8)

    def push(number: int) -> None:
        take = limiter.take
        start.wait()
        passed[number] = sum(1 for _ in range(25_000) if take("k"))

    threads = [Thread(target=push, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(passed) == 50_000


@pytest.mark.parametrize("code", algorithms())
def test_a_denial_by_the_second_limit_leaves_the_first_untouched_under_threads(code: str) -> None:
    store = MemoryStore()
    wide = meter_from_limit("wide", Limit(1_000, 10**9), algorithms()[code], {})
    narrow = meter_from_limit("narrow", Limit(7, 10**9), algorithms()["SL"], {})
    both = [Charge(wide, "k"), Charge(narrow, "k")]
    start = Barrier(8)
    room = store.peek(both[:1], BEGIN_US)[0].remaining + 1

    def push() -> None:
        start.wait()
        for _ in range(1_000):
            store.decide(both, BEGIN_US)

    threads = [Thread(target=push) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used = min(7, room)
    assert store.decide([Charge(wide, "k", 0)], BEGIN_US)[0].remaining == room - used


@pytest.mark.parametrize("code", algorithms())
def test_a_flood_of_strangers_does_not_free_a_blocked_key(code: str) -> None:
    clock = FakeClock(BEGIN_US)
    known: dict[str, dict[str, Any]] = {"LB": {"burst": 2}, "C": {"hold": "1d"}}
    options, store = known.get(code, {}), "memory://?max_keys=100"
    limiter = Limiter(a_day(3, code), algo=code, clock=clock, store=store, **options)
    while limiter.take("blocked"):
        pass
    for number in range(5_000):
        assert limiter.take(f"stranger {number}")
    assert not limiter.take("blocked")
    assert limiter.take("stranger 0").remaining == 2, "the idle were not forgotten"


def test_when_all_are_blocked_the_one_to_be_freed_first_goes_first() -> None:
    clock = FakeClock(BEGIN_US)
    limiter = Limiter("1/day", clock=clock, store="memory://?max_keys=10")
    for number in range(10):
        assert limiter.take(f"early {number}")
        clock.advance(60)
    for number in range(5):
        assert limiter.take(f"late {number}")
        clock.advance(60)
    forgotten = [number for number in range(10) if limiter.peek(f"early {number}")]
    assert forgotten == [0, 1, 2, 3, 4]


def test_a_key_in_use_is_not_idle() -> None:
    """It was the first to be met, but has been used since: those that were not go before it."""
    clock = FakeClock(BEGIN_US)
    limiter = Limiter("100/hour", clock=clock, store="memory://?max_keys=50")
    limiter.take("busy")
    for number in range(500):
        clock.advance(10)
        limiter.take("busy")
        limiter.take(f"once {number}")
    assert limiter.peek("busy").remaining < 60


def test_expired_keys_are_forgotten_by_those_who_come_later() -> None:
    clock = FakeClock(BEGIN_US)
    store = MemoryStore()
    limiter = Limiter("10/second", clock=clock, store=store, name="swept")
    for number in range(10_000):
        limiter.take(f"flood {number}")
    clock.advance(3_600)
    for _ in range(2_000):
        limiter.take("later")
    assert len(store) == 1


def test_a_key_reset_again_and_again_is_remembered_once() -> None:
    store = MemoryStore()
    limiter = Limiter("10/second", clock=FakeClock(BEGIN_US), store=store, name="reset")
    for _ in range(100):
        limiter.take("k")
        limiter.reset("k")
    assert len(store) == 1


def test_long_keys_are_kept_short_and_apart() -> None:
    limiter = Limiter("1/day", clock=FakeClock(BEGIN_US))
    long, other = "x" * 1_000_000, "x" * 999_999
    assert limiter.take(long)
    assert not limiter.take(long)
    assert limiter.take(other)
    kept = bounded_key(long)
    assert isinstance(kept, bytes)
    assert limiter.take(kept.hex()), "a short key was mistaken for the digest of a long one"
    limiter.reset(long)
    assert limiter.peek(long)


@pytest.mark.parametrize("key", [None, 5, b"bytes", 2.5, ("a",)])
def test_a_key_that_is_no_str_is_an_error(key: object) -> None:
    with pytest.raises(KeyTypeError, match=r"write str\(key\)"):
        Limiter("1/day").take(key)  # type: ignore[arg-type]


def test_limits_on_one_store_share_its_bound() -> None:
    store = MemoryStore(max_keys=20)
    clock = FakeClock(BEGIN_US)
    limiters = [Limiter("9/day", store=store, name=f"n{n}", clock=clock) for n in range(4)]
    for number in range(200):
        for limiter in limiters:
            limiter.take(f"k{number}")
    assert len(store) == 20


# A strike may fall where Python ignores it and warns: while what an earlier test left behind is finalized.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_leaves_no_lock_locked() -> None:
    """A signal may strike between any two steps; whoever goes on after it must be able to take."""
    limiter = Limiter("1000000/second")
    struck = 0

    class Struck(Exception):
        pass

    def strike(*_: object) -> None:
        raise Struck

    before = signal.signal(signal.SIGALRM, strike)
    try:
        while struck < 300:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.000_2)
                for _ in range(100_000):  # until the strike, if it is not ignored
                    limiter.take("k")
            except Struck:
                struck += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    after = Thread(target=limiter.take, args=("k",), daemon=True)
    after.start()
    after.join(30)
    assert not after.is_alive()


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_can_take() -> None:
    limiter = Limiter("1000000/second")
    done = Event()

    def push() -> None:
        while not done.is_set():
            limiter.take("k")

    thread = Thread(target=push)
    thread.start()
    try:
        for _ in range(30):
            child = os.fork()
            if child == 0:
                signal.alarm(10)
                os._exit(0 if limiter.take("k").limit else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        done.set()
        thread.join()


FLOOD = """
import sys
from diana import Limiter
from diana.testing.fake_clock import FakeClock

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

room = int(sys.argv[1])
clock = FakeClock(1_700_000_000_000_000)
limiter = Limiter("5/hour", clock=clock, store=f"memory://?max_keys={room}")
take = limiter.take
while take("blocked"):
    pass
empty, sizes = resident(), []
for flood in range(5):
    for number in range(room):
        take(f"stranger-{flood}-{number:09d}")
    sizes.append(resident() - empty)
print(*sizes, bool(take("blocked")))
"""


def test_five_times_as_many_keys_as_a_store_has_room_for() -> None:
    """Memory is flat from the third flood on (a dictionary at its bound grows once more), and the blocked stay so."""
    answer = subprocess.run(
        [sys.executable, "-c", FLOOD, "125000"], capture_output=True, text=True, check=True
    )
    *sizes, passed = answer.stdout.split()
    first, second, third, fourth, fifth = map(int, sizes)
    assert max(third, fourth, fifth) <= 1.05 * second, sizes
    assert fifth <= 1.25 * first, sizes
    assert passed == "False"


def keys_by_limit(store: MemoryStore) -> list[int]:
    """How many keys each limit has that has any, or is bound: in C or in Python."""
    counters = getattr(store, "_counters", None)
    if counters is not None:
        return [keys for _, keys in counters.owners()]
    return [len(table.states) for table in store._tables.by_id.values()]


def vanishing(store: MemoryStore, count: int, at_us: int, version: int = 0) -> None:
    """Requests under rules that nobody has heard of before, and nobody will again."""
    for number in range(count):
        meter = meter_from_limit(f"v{version} r{number}", Limit(5, 10**6), algorithms()["TB"], {})
        assert store.decide([Charge(meter, "k")], at_us)[0]


def test_rules_that_vanish_free_their_tables() -> None:
    store = MemoryStore()
    stays = meter_from_limit("stays", Limit(10**6, 10**6), algorithms()["TB"], {})
    now = BEGIN_US
    for version in range(5):
        vanishing(store, 1_000, now, version)
        now += 3_600 * 10**6
        for _ in range(1_000):
            store.decide([Charge(stays, "k")], now)
        assert len(store) == 1
        assert keys_by_limit(store) == [1]


def test_freed_numbers_are_used_again() -> None:
    store, now = InPython(), BEGIN_US
    stays = meter_from_limit("stays", Limit(10**6, 10**6), algorithms()["TB"], {})
    for version in range(3):
        vanishing(store, 1_000, now, version)
        now += 3_600 * 10**6
        for _ in range(1_000):
            store.decide([Charge(stays, "k")], now)
    assert len(store._tables.numbered) <= 1_001


def test_a_table_with_keys_of_blocked_callers_stays_until_they_are_free() -> None:
    store = MemoryStore(max_keys=10)
    day = meter_from_limit("day", Limit(1, 86_400 * 10**6), algorithms()["TB"], {})
    assert store.decide([Charge(day, "blocked")], BEGIN_US)[0]
    for version in range(20):
        vanishing(store, 50, BEGIN_US, version)
    assert len(store) == 10
    assert keys_by_limit(store) == [1] * 10
    assert not store.decide([Charge(day, "blocked")], BEGIN_US)[0]


def test_a_limiter_keeps_its_table_though_it_is_empty() -> None:
    clock = FakeClock(BEGIN_US)
    store = MemoryStore()
    limiter = Limiter("2/second", clock=clock, store=store, name="bound")
    other = Limiter("1000000/second", clock=clock, store=store, name="other")
    for _ in range(3):
        assert limiter.take("k").remaining == 1
        clock.advance(3_600)
        for _ in range(10):
            other.take("k")
        assert len(store) == 1
    assert [bool(limiter.take("k")) for _ in range(3)] == [True, True, False]


def test_whoever_only_asks_leaves_nothing_behind() -> None:
    store = MemoryStore()
    meter = meter_from_limit("asked", Limit(5, 10**6), algorithms()["TB"], {})
    store.peek([Charge(meter, "k")], BEGIN_US)
    store.decide([Charge(meter, "k", 0)], BEGIN_US)
    store.refund([Charge(meter, "k")], BEGIN_US, BEGIN_US)
    store.reset(meter, "k")
    assert (len(store), keys_by_limit(store)) == (0, [])


def test_two_new_keys_of_one_new_limit_meet_in_one_table() -> None:
    store = MemoryStore()
    meter = meter_from_limit("both", Limit(1, 10**9), algorithms()["TB"], {})
    both = [Charge(meter, "a"), Charge(meter, "b")]
    assert all(store.decide(both, BEGIN_US))
    assert not any(store.decide(both, BEGIN_US))
    assert (len(store), keys_by_limit(store)) == (2, [2])


@pytest.mark.parametrize("flood_is_blocked", [False, True])
def test_a_flood_under_one_rule_does_not_push_out_the_keys_of_another(
    flood_is_blocked: bool,
) -> None:
    """Four of five logins used; then a flood of keys under another rule. The fifth passes, and not one more."""
    clock, store = FakeClock(BEGIN_US), MemoryStore(max_keys=100)
    logins = Limiter("5/hour", store=store, name="logins", clock=clock)
    flood = Limiter(
        "1/day" if flood_is_blocked else "9/day", store=store, name="flood", clock=clock
    )
    for number in range(40):
        assert logins.take(f"account {number}", cost=4)
    for number in range(5_000):
        assert flood.take(f"invented {number}")
    assert [logins.take(f"account {number}").remaining for number in range(40)] == [0] * 40
    assert not any(logins.take(f"account {number}") for number in range(40))
    assert len(store) == 100


def test_who_has_more_than_their_share_gives_up_what_is_over_it() -> None:
    clock, store = FakeClock(BEGIN_US), MemoryStore(max_keys=90)
    limiters = [Limiter("9/day", store=store, name=f"n{n}", clock=clock) for n in range(3)]
    for limiter, count in zip(limiters, (500, 500, 20), strict=True):
        for number in range(count):
            limiter.take(f"{number}")
    assert sorted(keys_by_limit(store)) == [20, 35, 35]
