"""What is measured: by real processes, real loops, real servers, and the files of cgroups as Linux writes them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from diana import ConfigError, Guard, Request
from diana.core.shed_settings import Factor, ShedSettings
from diana.rules.loading import rules_from_bytes
from diana.runtime.entry_points import entries, plugin
from diana.shedding.cgroup import Cgroups, CpuQuota, MemoryUse
from diana.shedding.factors.cpu import cpu, cpu_sample
from diana.shedding.factors.loop_lag import LoopLag
from diana.shedding.factors.memory import memory_sample, process_memory_sample
from diana.shedding.factors.redis_length import redis_length
from diana.shedding.sampling import ProcessActivity
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.shedding.lines import at_level, policy, state

MACHINE = psutil.virtual_memory().total


def written(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def groups(folder: Path, files: dict[str, str]) -> Cgroups:
    written(folder, files)
    return Cgroups(folder / "membership", folder / "sys")


V2_STAT = "anon 1\nfile 2\ninactive_file 1000\nactive_file 9\n"


@pytest.mark.parametrize(
    ("files", "cpu", "memory"),
    [
        ({}, None, None),
        (
            {"membership": "0::/\n", "sys/cpu.max": "50000 100000\n", "sys/cpu.stat": "usage_usec 700\nuser_usec 5\n",
             "sys/memory.max": "8000\n", "sys/memory.current": "5000\n", "sys/memory.stat": V2_STAT},
            CpuQuota(0.5, 700), MemoryUse(4_000, 8_000),
        ),
        (
            {"membership": "0::/\n", "sys/cpu.max": "max 100000\n", "sys/cpu.stat": "usage_usec 700\n",
             "sys/memory.max": "max\n", "sys/memory.current": "5000\n", "sys/memory.stat": V2_STAT},
            None, None,
        ),
        (  # the limit is the pod's, not the container's
            {"membership": "0::/pod/box\n", "sys/pod/box/cpu.max": "max 100000", "sys/pod/box/cpu.stat": "usage_usec 1",
             "sys/pod/cpu.max": "200000 100000", "sys/pod/cpu.stat": "usage_usec 9",
             "sys/pod/box/memory.max": "9000", "sys/pod/box/memory.current": "10",
             "sys/pod/memory.max": "1000", "sys/pod/memory.current": "900"},
            CpuQuota(2.0, 9), MemoryUse(900, 1_000),
        ),
        (  # the path is the host's, but only the container's folder is mounted
            {"membership": "0::/../../system.slice/box\n", "sys/cpu.max": "10000 100000", "sys/cpu.stat": "usage_usec 3"},
            CpuQuota(0.1, 3), None,
        ),
        (
            {"membership": "9:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n0::/docker/x\n",
             "sys/cpu,cpuacct/docker/x/cpu.cfs_quota_us": "150000", "sys/cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000",
             "sys/cpu,cpuacct/docker/x/cpuacct.usage": "5000000",
             "sys/memory/docker/x/memory.limit_in_bytes": "4096", "sys/memory/docker/x/memory.usage_in_bytes": "4000",
             "sys/memory/docker/x/memory.stat": "cache 1\ntotal_inactive_file 96\n"},
            CpuQuota(1.5, 5_000), MemoryUse(3_904, 4_096),
        ),
        (
            {"membership": "2:cpuacct:/x\n1:cpu:/x\n", "sys/cpu/x/cpu.cfs_quota_us": "50000",
             "sys/cpu/x/cpu.cfs_period_us": "100000", "sys/cpuacct/x/cpuacct.usage": "7000"},
            CpuQuota(0.5, 7), None,
        ),
        (
            {"membership": "9:memory:/\n4:cpu,cpuacct:/\n", "sys/cpu,cpuacct/cpu.cfs_quota_us": "-1",
             "sys/cpu,cpuacct/cpu.cfs_period_us": "100000", "sys/cpu,cpuacct/cpuacct.usage": "5",
             "sys/memory/memory.limit_in_bytes": "9223372036854771712", "sys/memory/memory.usage_in_bytes": "5"},
            None, None,
        ),
        (
            {"membership": "nonsense\n::\n0::/\n", "sys/cpu.max": "0 0", "sys/cpu.stat": "usage_usec x",
             "sys/memory.max": "0", "sys/memory.current": "1"},
            None, None,
        ),
    ],
    ids=["none", "2", "2 unlimited", "2 pod", "2 namespace", "1", "1 apart", "1 unlimited", "nonsense"],
)  # fmt: skip
def test_limits_of_cgroups(
    tmp_path: Path, files: dict[str, str], cpu: CpuQuota | None, memory: MemoryUse | None
) -> None:
    found = groups(tmp_path, files)
    assert (found.cpu(), found.memory()) == (cpu, memory)
    assert (found.cpu(), found.memory()) == (cpu, memory), "also when it knows where to look"


def test_memory_is_the_containers_where_it_has_a_limit_and_the_machines_elsewhere(
    tmp_path: Path,
) -> None:
    limited = {"membership": "0::/", "sys/memory.max": "1000", "sys/memory.current": "900"}
    assert memory_sample(groups(tmp_path / "a", limited))() == 90.0
    machine = memory_sample(groups(tmp_path / "b", {}))()
    assert machine is not None
    assert 0 < machine < 100
    larger = {**limited, "sys/memory.max": str(10 * MACHINE)}
    elsewhere = memory_sample(groups(tmp_path / "c", larger))()
    assert elsewhere == pytest.approx(machine, abs=20), "a limit above the machine's is none"


def test_the_memory_of_this_process_is_a_share_of_the_same(tmp_path: Path) -> None:
    rss = psutil.Process().memory_info().rss
    of_machine = process_memory_sample(groups(tmp_path / "a", {}))()
    assert of_machine == pytest.approx(100 * rss / MACHINE, rel=0.3)
    limit = {"membership": "0::/", "sys/memory.max": str(2 * rss), "sys/memory.current": "1"}
    assert process_memory_sample(groups(tmp_path / "b", limit))() == pytest.approx(50, rel=0.3)


def _burn() -> None:
    while True:
        pass


@contextmanager
def burning(processes: int) -> Iterator[list[int]]:
    burners = [
        multiprocessing.get_context("spawn").Process(target=_burn, daemon=True)
        for _ in range(processes)
    ]
    try:
        for burner in burners:
            burner.start()
        yield [burner.pid or 0 for burner in burners]
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


class Quota:
    """A container's files, kept as Linux keeps them, for the processes that are said to be in it."""

    def __init__(self, folder: Path, cores: float) -> None:
        quota = {"membership": "0::/", "sys/cpu.max": f"{round(100_000 * cores)} 100000"}
        self.groups = groups(folder, quota)
        self._stat = folder / "sys" / "cpu.stat"
        self.pids: list[int] = []
        self._used_us = 0
        self._closed = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._closed.wait(0.05):
            self._write()

    def _write(self) -> None:
        used = 0.0
        for pid in list(self.pids):
            try:
                times = psutil.Process(pid).cpu_times()
            except psutil.Error:
                continue
            used += times.user + times.system
        self._used_us = max(self._used_us, round(used * 1e6))
        fresh = self._stat.with_suffix(".new")
        fresh.write_text(f"usage_usec {self._used_us}\n")
        fresh.replace(self._stat)


def test_a_burner_takes_a_container_through_the_levels_and_its_end_takes_it_back(
    tmp_path: Path,
) -> None:
    """A tenth of a core is easily used up, however busy the machine is; and not at all by what is not in the container."""
    quota = Quota(tmp_path, cores=0.1)
    line = ShedSettings("cpu", cpu, {}, cpu.levels, lambda _: cpu_sample(quota.groups))
    guard = Guard(policy(line))
    try:
        until(lambda: state(guard, "cpu").value == 0.0, "an idle container is measured")
        assert all(guard.check(Request()) for _ in range(100))
        with burning(1) as quota.pids:
            until(lambda: state(guard, "cpu").level == 3, "the top is reached", within=120)

            def rejected() -> int:
                return sum(not guard.check(Request()) for _ in range(1_000))

            until(lambda: 650 < rejected() < 750, "its share is rejected", within=60)
        at_level(guard, 0, "cpu")
        assert all(guard.check(Request()) for _ in range(100))
    finally:
        quota.close()
        guard.close()


def test_burners_on_all_processors_take_the_machine_to_a_level() -> None:
    """That it is left again is not claimed here: other tests burn the same processors."""
    read = rules_from_bytes(
        b"shed: [{factor: cpu}]\nlimits: [{url: /, rules: [{unit: hour, rpu: 9}]}]"
    )
    (line,) = read.settings.shed
    machine = line._replace(open=lambda _: cpu_sample(Cgroups(Path("/nowhere"), Path("/nowhere"))))
    guard = Guard(policy(machine))
    try:
        with burning(os.cpu_count() or 1):
            until(lambda: state(guard, "cpu").level, "a level is reached", within=120)
    finally:
        guard.close()


def test_the_lag_of_a_loop_is_measured_while_it_is_idle_busy_and_gone() -> None:
    activity = ProcessActivity()
    lag = LoopLag(activity)
    assert lag() is None

    async def serve() -> None:
        activity.loop = asyncio.get_running_loop()
        assert lag() is None, "it has just been asked"
        await asyncio.sleep(0)
        idle = lag()
        assert idle is not None
        assert idle >= 0
        time.sleep(0.3)  # a loop that is kept busy
        standing_still = lag()
        assert standing_still is not None
        assert standing_still >= 299
        await asyncio.sleep(0)
        assert (lag() or 0) >= 299, "it had stood still when it was asked"
        await asyncio.sleep(0)
        again = lag()
        assert again is not None

    asyncio.run(serve())
    assert lag() is None, "the loop is closed"


def test_requests_inside_in_any_thread() -> None:
    activity = ProcessActivity()

    def come_and_go() -> None:
        for _ in range(20_000):
            with activity.inside():
                pass

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    activity.enter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert activity.inflight == 1
    activity.leave()
    activity.leave()
    assert activity.inflight == 0


def length_of(server: Server, key: str) -> Guard:
    text = f"factor: redis_length, url: '{server.url}', key: {key}, levels: [{{above: 100, reject: 100}}]"
    rules = f"shed: [{{{text}}}]\nlimits: [{{url: /, rules: [{{unit: hour, rpu: 9}}]}}]"
    return Guard(rules_from_bytes(rules.encode()))


def test_the_length_of_a_list_or_a_stream(redis7: Server) -> None:
    client = redis7.client()
    client.flushall()
    guard = length_of(redis7, "jobs")
    until(lambda: state(guard, "redis_length").value == 0, "nothing waits")
    client.rpush("jobs", *range(300))
    at_level(guard, 1, "redis_length")
    assert not guard.check(Request())
    client.delete("jobs")
    for number in range(3):
        client.xadd("jobs", {"job": number})
    until(lambda: state(guard, "redis_length").value == 3, "it is a stream by now")
    client.delete("jobs")
    client.zadd("jobs", {"a": 1, "b": 2})
    until(lambda: state(guard, "redis_length").value == 2, "it is a sorted set by now")
    client.delete("jobs")
    client.set("jobs", "x")
    # Who looked while the key changed its type was told of that first.
    said = "TypeError: key jobs is a string, which has no length"
    until(lambda: state(guard, "redis_length").problem == said, "a text is no queue")
    guard.close()


def test_a_queue_out_of_reach_sheds_nothing_and_comes_back() -> None:
    with Server(REDIS_7) as server:
        server.client().rpush("jobs", *range(300))
        guard = length_of(server, "jobs")
        at_level(guard, 1, "redis_length")
        server.kill()
        at_level(guard, 0, "redis_length")
        assert guard.check(Request())
        assert state(guard, "redis_length").problem
        server.restart()
        server.client().rpush("jobs", *range(300))
        at_level(guard, 1, "redis_length")
        guard.close()


@pytest.mark.parametrize(
    ("options", "said", "path"),
    [
        ({"key": "jobs"}, "there is no url; write url: such as redis://localhost:6379", "url"),
        ({"url": "redis://h"}, "there is no key; write key: and the name of the list or stream", None),
        ({"url": "redis://h/x", "key": "j"}, "behind the host stands the number of a database, such as /0", "url"),
        ({"url": "redis://h:99999", "key": "j"}, "a port of the queue is no number from 1 to 65535", "url"),
    ],
)  # fmt: skip
def test_mistaken_options_of_a_queue(options: dict[str, str], said: str, path: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        redis_length.make(**options)
    assert (caught.value.message, caught.value.path) == (said, path)


@pytest.mark.parametrize("name", sorted(entries("factors")))
def test_every_factor_is_one(name: str) -> None:
    factor = plugin("factors", name)
    assert isinstance(factor, Factor)
    assert factor.smoothing_seconds > 0


@pytest.mark.parametrize(
    ("package", "factor", "extra"), [("psutil", "cpu", "shed"), ("redis", "redis_length", "redis")]
)
def test_a_missing_package_names_its_extra(package: str, factor: str, extra: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from diana.rules.loading import rules_from_bytes\n"
        f"rules_from_bytes(b'shed: [{{factor: {factor}}}]\\nlimits: []')"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
    assert f"needs the package {package}, which is not installed" in told
    assert f"pip install 'diana-limiter[{extra}]'" in told
