"""Counting in C: what a decision costs in memory and in a zone, beside the least that a call into C can be.

All in turns, as in the race `local`. The least is `minimal.c`, compiled when this runs: one bucket for all keys.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from operator import itemgetter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from uuid import uuid4

from benchmarks.local import PER_MINUTE, _limits, _throttled
from benchmarks.race import Contestant, Times, race
from benchmarks.report import Figure, Goal, Section, at_least, at_most
from diana import Guard, Limiter, Request
from diana.core.contracts import Store
from diana.rules.loading import load_rules
from diana.stores.c_kernels import description, kernels
from diana.stores.memory.python_store import PythonMemoryStore as MemoryInPython
from diana.stores.zone.python.python_zone import PythonZone
from diana.stores.zone.store import SharedStore
from diana.stores.zone.zone_file import open_zone_file, path_of_zone

LIMIT = f"{PER_MINUTE}/minute"
HERE = Path(__file__).parent
RULES = f"""
url: /
rules:
  - {{actor: all, unit: minute, rpu: {PER_MINUTE}, algo: TB}}
  - {{actor: ip, unit: minute, rpu: {PER_MINUTE}, algo: W}}
  - {{actor: header X-Account-Id, unit: minute, rpu: {PER_MINUTE}, algo: SW}}
"""
MEMORY, ZONE, MINIMAL, LIMITS = "memory, TB", "zone, TB", "minimal C", "limits, fixed window"
THROTTLED = "throttled-py, token bucket"
PUSH = """
import sys, time
from diana import Limiter
take = Limiter(sys.argv[2], store=f"shared://{sys.argv[1]}", name="l").take
keys = [f"{sys.argv[3]} {number}" for number in range(1_000)]
print("ready", flush=True)
sys.stdin.readline()
ends, began, done = time.perf_counter() + float(sys.argv[4]), time.process_time(), 0
while time.perf_counter() < ends:
    for key in keys:
        take(key)
    done += len(keys)
print(done / (time.process_time() - began), flush=True)
"""
BYTES = """
import sys
from diana import Limiter

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

take, count = Limiter("1000/day", algo=sys.argv[1]).take, 1_000_000
take("first")
before = resident()
for number in range(count):
    take(f"user:{number:016d}")
print((resident() - before) / count)
"""


def run(quick: bool) -> Section:
    if kernels() is None:
        raise SystemExit(f"nothing to measure: {description()}")
    zones: list[str] = []
    try:
        figures = [*_hot(quick, zones), *_many(quick), *_requests(quick), *_processes(quick, zones)]
        figures += [_bytes_per_key(code) for code in ("TB", "LB", "W")]
    finally:
        for name in zones:
            path_of_zone(name).unlink(missing_ok=True)
    return Section(
        name="native",
        title="counting in C, in memory and in shared memory",
        how=_HOW,
        figures=figures,
        libraries=("diana-limiter", "limits", "throttled-py"),
        quick=quick,
    )


_HOW = (
    "`Limiter.take` with a full Decision, everything allowed, in turns with the others. Minimal C is a call into C that keeps one bucket "
    "for all keys and returns a tuple: no key is looked up. Two processes take from one zone at the same time, 1,000 keys each; per second "
    "of their processor time, so that a busy machine does not count. Bytes per key: "
    "growth of the process over a million keys."
)


def _hot(quick: bool, zones: list[str]) -> list[Figure]:
    contestants = [
        Contestant(MINIMAL, _minimal(), passed=itemgetter(0)),
        *(Contestant(f"memory, {code}", Limiter(LIMIT, algo=code).take) for code in ("TB", "LB", "W", "SW")),
        Contestant("memory in Python, TB", _take(MemoryInPython(), "TB")),
        *(Contestant(f"zone, {code}", _take(_zone(zones), code)) for code in ("TB", "LB", "W", "SW")),
        Contestant("zone in Python, TB", _take(_zone_in_python(zones), "TB")),
        _limits(),
        _throttled("token_bucket", 1_000),
    ]  # fmt: skip
    turn, rounds = (500, 100) if quick else (1_000, 400)
    keys = ["user:0000000000000001"] * turn
    times = race(contestants, keys, turn=turn, rounds=rounds)
    return [_hot_figure(one.name, times) for one in contestants]


def _hot_figure(name: str, times: Times) -> Figure:
    value, slower = times.median_us(name), times.ratio(name)
    faster = min(times.ratio(LIMITS, to=name), times.ratio(THROTTLED, to=name))
    goals: tuple[Goal, ...] = ()
    if name == MEMORY:
        goals = (at_most(slower, 2, "× minimal C"), at_least(faster, 25, "× faster than both"))
    elif name == ZONE:
        goals = (at_most(value, 0.3, "µs"),)
    elif name == "zone in Python, TB":
        goals = (at_most(value, 6, "µs"),)
    ratios = {"× minimal C": slower}
    if name not in (LIMITS, THROTTLED, MINIMAL):
        ratios["× faster than limits and throttled-py"] = faster
    return Figure(f"one hot key, {name}", value, "µs", ratios, goals=goals)


def _many(quick: bool) -> list[Figure]:
    count, turn, rounds = (20_000, 500, 80) if quick else (100_000, 500, 1_000)
    keys = [f"user:{number:016d}" for number in range(count)]
    Random(1).shuffle(keys)
    name = f"{count:,} keys in random order, memory, TB"
    times = race([Contestant(name, Limiter(LIMIT).take)], keys, turn=turn, rounds=rounds)
    value = times.median_us(name)
    return [Figure(name, value, "µs", goals=(at_most(value, 0.4, "µs"),))]


def _requests(quick: bool) -> list[Figure]:
    with TemporaryDirectory() as folder:
        file = Path(folder, "rules.yaml")
        file.write_text(RULES)
        guard = Guard(load_rules(file))
    requests = [
        Request("GET", "/a/b", {"x-account-id": f"{number}"}, "", "10.0.0.7")
        for number in range(1_000)
    ]
    name = "Guard.check, three local rules"
    rounds = 100 if quick else 400
    times = race([Contestant(name, guard.check)], requests, turn=100, rounds=rounds)
    value = times.median_us(name)
    return [Figure(name, value, "µs", goals=(at_most(value, 5, "µs"),))]


def _processes(quick: bool, zones: list[str]) -> list[Figure]:
    """Together, in decisions per second: the best of some rounds, because neighbours only ever slow them down."""
    best = 0.0
    for _ in range(2 if quick else 5):
        name = _zone_name(zones)
        pushing = [
            subprocess.Popen(
                [sys.executable, "-c", PUSH, name, LIMIT, side, "0.5" if quick else "2"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for side in "ab"
        ]
        answers = [_answers(process) for process in pushing]
        for answer in answers:
            next(answer)
        for process in pushing:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        best = max(best, sum(float(next(answer)) for answer in answers))
        for process in pushing:
            process.communicate()
    goals = (at_least(best / 1e6, 5, "million/s"),)
    return [Figure("two processes on one zone, together", best / 1e6, "million/s", goals=goals)]


def _answers(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    yield from process.stdout


def _bytes_per_key(code: str) -> Figure:
    said = subprocess.run(
        [sys.executable, "-c", BYTES, code], capture_output=True, text=True, check=True
    ).stdout
    goals = (at_most(float(said), 64, "bytes"),)
    return Figure(f"a million keys in memory, {code}", float(said), "bytes", goals=goals)


def _take(store: Store, code: str) -> Callable[[str], object]:
    return Limiter(LIMIT, algo=code, store=store, name=f"l {code}").take


def _zone_name(zones: list[str]) -> str:
    zones.append(f"bench-{uuid4().hex}")
    return zones[-1]


def _zone(zones: list[str]) -> Store:
    return SharedStore(_zone_name(zones))


def _zone_in_python(zones: list[str]) -> Store:
    file = open_zone_file(_zone_name(zones), PythonZone.kind, None, PythonZone.lay_out)
    zone: Store = PythonZone(file)
    return zone


def _minimal() -> Callable[[str], Sequence[object]]:
    with TemporaryDirectory() as folder:
        built = Path(folder, "minimal.abi3.so")
        include = f"-I{sysconfig.get_path('include')}"
        subprocess.run(
            ["cc", "-O3", "-fPIC", "-shared", include, str(HERE / "minimal.c"), "-o", str(built)],
            check=True,
        )
        spec = spec_from_file_location("minimal", built)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    take: Callable[[str], Sequence[object]] = module.take
    return take
