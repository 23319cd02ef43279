"""Processes that count in one zone, as a program of its own: what it found is one line of JSON.

python crowd.py count NAME CODE PROCESSES TAKES KEYS LIMIT
python crowd.py kill NAME CODE PROCESSES KILLS
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import struct
import sys
import time

from diana import Limiter

FAR = 10**9


def worker(limiter: Limiter, takes: int, keys: int, notes: mmap.mmap, place: int) -> None:
    # Not by struct.pack_into, which first writes zeros: killed between, a process would have noted nothing.
    admitted = memoryview(notes).cast("q")
    for number in range(takes):
        if limiter.take(f"k{number % keys}"):
            admitted[place] += 1


def started(limiter: Limiter, takes: int, keys: int, notes: mmap.mmap, place: int) -> int:
    pid = os.fork()
    if not pid:
        worker(limiter, takes, keys, notes, place)
        os._exit(0)
    return pid


def opened(name: str, code: str, limit: int) -> Limiter:
    """So slow that nothing leaks or ends while the test runs."""
    options = {"align": "first"} if code == "W" else {}
    spelling, where = f"{limit} per 8760h", f"shared://{name}?size=4m"
    return Limiter(spelling, algo=code, store=where, name="crowd", **options)  # type: ignore[arg-type]


def count(name: str, code: str, processes: int, takes: int, keys: int, limit: int) -> object:
    """Each opens the zone by itself, at once with the others."""
    notes = mmap.mmap(-1, processes * 8)
    pids = []
    for place in range(processes):
        pid = os.fork()
        if not pid:
            worker(opened(name, code, limit), takes, keys, notes, place)
            os._exit(0)
        pids.append(pid)
    codes = [os.waitpid(pid, 0)[1] for pid in pids]
    return {"codes": codes, "admitted": sum(struct.unpack(f"{processes}q", notes))}


def kill(name: str, code: str, processes: int, kills: int) -> object:
    """One after another is killed somewhere in its work, and another one takes its place."""
    # Logs of ten thousand entries, but no more of them than the zone has room for.
    limit, keys = (10_000, 5) if code == "SL" else (1_000_000, 20)
    limiter = opened(name, code, limit)
    notes = mmap.mmap(-1, (processes + kills) * 8)
    running = {place: started(limiter, FAR, keys, notes, place) for place in range(processes)}
    chosen, longest = random.Random(7), 0.0
    for number in range(kills):
        time.sleep(chosen.random() * 0.02)
        place = chosen.choice(list(running))
        pid = running.pop(place)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        began = time.monotonic()
        limiter.peek("k0")
        longest = max(longest, time.monotonic() - began)
        place = processes + number
        running[place] = started(limiter, FAR, keys, notes, place)
    for pid in running.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    looks = [limiter.peek(f"k{number}") for number in range(keys)]
    used = sum(limit - look.remaining - look.allowed for look in looks)
    admitted = sum(struct.unpack(f"{processes + kills}q", notes))
    return {"used": used, "admitted": admitted, "longest": longest, "keys": keys}


if __name__ == "__main__":
    verb, name, code, *numbers = sys.argv[1:]
    print(json.dumps({"count": count, "kill": kill}[verb](name, code, *map(int, numbers))))  # type: ignore[operator]
