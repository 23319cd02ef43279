"""Nothing is left behind: ten million decisions, and the process is as large as before."""

from __future__ import annotations

import subprocess
import sys

LEAKS = """
from diana import Limiter
from diana.core.charge import Charge
from diana.core.errors import CostError, KeyTypeError
from diana.core.limit import Limit
from diana.core.counter import meter_from_limit
from diana.runtime.entry_points import algorithms
from diana.stores.memory import MemoryStore

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

store = MemoryStore()
passes = Limiter("1000000000/minute").take
denies = Limiter("1/day").take
meters = [meter_from_limit("m", Limit(1_000, 10**6), algorithms()[code], {}) for code in ("TB", "W", "SW", "SL")]

def several(count):
    charges = [Charge(meter, "k") for meter in meters[:3]]
    with_python = [Charge(meter, "k") for meter in meters]
    for number in range(count):
        store.decide(charges)
        if not number % 50:
            store.decide(with_python)
            store.peek(with_python)
            store.refund(charges, 0)
            store.reset(meters[2], "k")

def wrong(count):
    for _ in range(count):
        for ask, error in ((lambda: passes(5), KeyTypeError), (lambda: passes("k", -1), CostError), (lambda: passes(), TypeError),
                           (lambda: passes("k", price=1), TypeError), (lambda: store.decide([3]), TypeError)):
            try:
                ask()
            except error:
                continue
            raise AssertionError(error)

def limiters(count):
    for _ in range(count):
        take = Limiter("5/second", algo="SW").take
        for key in "abc":
            take(key)

def all_of_them(takes):
    for _ in range(takes):
        passes("key")
        denies("key")
    several(takes // 20)
    wrong(takes // 2000)
    limiters(takes // 2000)

all_of_them(400_000)
before = resident()
all_of_them(5_000_000)
print(resident() - before)
"""


def test_ten_million_decisions_leave_nothing_behind() -> None:
    done = subprocess.run([sys.executable, "-c", LEAKS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2 << 20
