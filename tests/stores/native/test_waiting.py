"""Who waits for a shard's lock holds nothing that others need."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

from diana.core.charge import Charge
from diana.stores.zone.store import SharedStore
from tests.servers.waiting import until
from tests.stores.native.shard_lock import ShardLock
from tests.stores.native.waiting_worker import METER
from tests.stores.shared.zones import zone_name

ROOT = Path(__file__).parents[3]


@contextmanager
def worker(role: str, store: SharedStore, *keys: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.stores.native.waiting_worker", role, store.file.name]
    with subprocess.Popen(
        [*command, *keys], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert heard(process) == "ready"
            yield process
        finally:
            process.kill()


def heard(process: subprocess.Popen[str]) -> str:
    """Its next line, or TimeoutError."""
    lines: list[str] = []
    assert process.stdout is not None
    listens = Thread(target=lambda: lines.append(process.stdout.readline()), daemon=True)  # type: ignore[union-attr]
    listens.start()
    until(lambda: lines, "the worker said something")
    return lines[0].strip()


def key_of_shard(store: SharedStore, shard: int) -> str:
    """Only who waits for this very shard is told from others."""
    for number in range(1_000):
        lock = ShardLock(store, shard)
        with lock.held():
            thread = Thread(target=store.peek, args=([Charge(METER, f"key {number}", 1)],))
            thread.start()
            until(lambda: lock.somebody_waits() or not thread.is_alive(), "it waits or is through")  # noqa: B023
            found = thread.is_alive()
        thread.join()
        if found:
            return f"key {number}"
    raise AssertionError(f"no key is in shard {shard}")


def test_a_signal_handler_may_count_while_a_decision_waits() -> None:
    with zone_name() as name:
        store = SharedStore(name, 16 << 20)
        keys = [key_of_shard(store, 0), key_of_shard(store, 1)]
        lock = ShardLock(store, 1)
        with ExitStack() as until_the_end:
            with lock.held():
                process = until_the_end.enter_context(worker("signalled", store, *keys))
                until(lock.somebody_waits, "the decision has the first shard, not the second")
                process.send_signal(signal.SIGUSR1)
                assert heard(process) == "True"  # the handler's
            assert heard(process) == "True"  # the decision's


def test_who_has_to_wait_for_pythons_lock_does_not_keep_the_shard() -> None:
    with zone_name() as name:
        store = SharedStore(name, 4 << 20)
        lock = ShardLock(store)
        with ExitStack() as until_the_end:
            with lock.held():
                process = until_the_end.enter_context(worker("busy", store, "a"))
                assert heard(process) == "busy"  # and its thread waits for the shard
                assert lock.somebody_waits()
            through = Thread(target=store.decide, args=([Charge(METER, "a", 1)],), daemon=True)
            through.start()
            until(lambda: not through.is_alive(), "the shard is free", within=10)
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            assert heard(process) == "[True]"
