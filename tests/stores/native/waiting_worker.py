"""Processes that wait for a shard's lock, each with something else to do meanwhile.

`signalled`: a signal's handler takes from a shard that the interrupted decision would hold.
`busy`: another thread computes for long and does not let go of Python's own lock, until a line is written to it.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from threading import Thread
from types import FrameType

from diana.core.charge import Charge
from diana.core.counter import meter_from_limit
from diana.core.limit import Limit
from diana.runtime.entry_points import algorithms
from diana.stores.zone.store import SharedStore
from tests.servers.waiting import until
from tests.stores.native.shard_lock import ShardLock

METER = meter_from_limit("waits", Limit(1_000, 86_400_000_000), algorithms()["W"], {})


def signalled(store: SharedStore, keys: list[str]) -> None:
    def count_too(number: int, frame: FrameType | None) -> None:
        print(bool(store.decide([Charge(METER, keys[0], 1)])[0]), flush=True)

    signal.signal(signal.SIGUSR1, count_too)
    print("ready", flush=True)
    print(all(store.decide([Charge(METER, key, 1) for key in keys])), flush=True)


def busy(store: SharedStore, keys: list[str]) -> None:
    taken: list[bool] = []
    thread = Thread(target=lambda: taken.append(bool(store.decide([Charge(METER, keys[0], 1)])[0])))
    print("ready", flush=True)
    thread.start()
    # Before that it needs Python's own lock itself.
    until(ShardLock(store).somebody_waits, "the thread waits for the shard")
    print("busy", flush=True)
    # What is called through PyDLL keeps Python's own lock, as a long computation in C does.
    ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)
    thread.join()
    print(taken, flush=True)


if __name__ == "__main__":
    {"signalled": signalled, "busy": busy}[sys.argv[1]](SharedStore(sys.argv[2]), sys.argv[3:])
