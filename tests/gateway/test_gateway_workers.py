"""`diana gateway --workers N`: one address, one count, and a supervisor that keeps them running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from diana.gateway.filters.signature import signature_lines
from diana.gateway.http_protocol import LAST_REQUEST_SECONDS
from diana.stores.zone.zone_file import path_of_zone
from tests.gateway.upstreams import (
    HEEDING,
    HELLO,
    PATIENCE,
    ask,
    connected,
    get,
    lines_of,
    read_exactly,
    read_head,
    says,
    status_of,
    to_the_end,
    upstream,
)
from tests.servers.waiting import until
from tests.shake.processes import state_of

LIMIT = 60
RULES = "limits: [{url: /, rules: [{name: ours, unit: 8760h, rpu: %d, status: 429}]}]"
SECONDS = 3 * PATIENCE
SECRET = "correct horse battery staple"


class Gateway:
    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [*HEEDING, sys.executable, "-m", "diana", "gateway", "--bind", "127.0.0.1:0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        found = re.match(r"Diana listens on http://127\.0\.0\.1:(\d+) ", self.said)
        if not found:
            self.process.kill()
        assert found, self.process.communicate()
        self.port = int(found[1])

    @property
    def zone(self) -> str:
        return f"gateway-127.0.0.1-{self.port}"

    def workers(self) -> set[int]:
        """The processes of the supervisor."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        return {
            int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()
        }

    def ask_often(self, number: int) -> Counter[int]:
        def status(_: int) -> int:
            # A worker that has just been started may take long until it answers who waits.
            return status_of(ask(self.port, get("/"), SECONDS))

        with ThreadPoolExecutor(8) as pool:
            return Counter(pool.map(status, range(number)))

    def stopped(self, number: signal.Signals) -> tuple[str, str]:
        self.process.send_signal(number)
        return self.process.communicate(timeout=SECONDS)


Start = Callable[..., Gateway]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Gateway] = []
    file = tmp_path / "rules.yaml"
    file.write_text(RULES % LIMIT)

    def run(*options: str, rules: Path = file) -> Gateway:
        started.append(Gateway("--rules", str(rules), *options))
        return started[-1]

    yield run
    for gateway in started:
        if gateway.process.poll() is None:
            gateway.stopped(signal.SIGTERM)
        path_of_zone(gateway.zone).unlink(missing_ok=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_they_share_an_address_and_a_count_and_end_together(
    start: Start, number: signal.Signals
) -> None:
    with upstream(says(HELLO)) as service:
        gateway = start("--upstream", service.url, "--workers", "3", "--no-denial-log")
        assert gateway.said.endswith(", with 3 workers.\n")
        workers = gateway.workers()
        assert len(workers) == 3
        assert gateway.ask_often(LIMIT + 20) == {200: LIMIT, 429: 20}
        assert path_of_zone(gateway.zone).exists()
        out, err = gateway.stopped(number)
    assert (gateway.process.returncode, err) == (0, "")
    lines = out.splitlines()
    assert sum('"GET / HTTP/1.1" 429 ' in line for line in lines) == 20
    assert lines[-1] == "Stopped."
    assert {state_of(pid) for pid in workers} <= {"", "Z"}
    assert not path_of_zone(gateway.zone).exists(), "nobody comes back to a port that was free"


def test_a_worker_that_dies_is_replaced_and_the_count_stays(start: Start) -> None:
    gateway = start("--sample", "--workers", "2")
    assert gateway.ask_often(LIMIT // 2) == {200: LIMIT // 2}
    before = gateway.workers()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    until(lambda: len(gateway.workers() - before) == 2, "both are replaced", within=SECONDS)
    assert gateway.ask_often(LIMIT) == {200: LIMIT - LIMIT // 2, 429: LIMIT // 2}
    _, err = gateway.stopped(signal.SIGTERM)
    assert err.count("died (SIGKILL); another one starts") == 2
    assert gateway.process.returncode == 0


def test_a_hangup_replaces_them_one_by_one_and_no_request_is_refused(
    start: Start, tmp_path: Path
) -> None:
    rules = tmp_path / "reads.yaml"
    rules.write_text((RULES % LIMIT).replace("url: /,", "url: /, methods: [GET],"))
    gateway = start("--sample", "--workers", "2", "--no-access-log", rules=rules)
    before, done = gateway.workers(), False
    found: Counter[int] = Counter()

    def keep_asking() -> None:
        while not done:
            began = time.monotonic()
            with connected(gateway.port) as client:
                client.sendall(get("/", "Connection: close"))
                took = time.monotonic() - began
                answer = to_the_end(client)
            # Who stands still between coming and asking is not waited for.
            if answer or took < LAST_REQUEST_SECONDS / 2:
                found[status_of(answer)] += 1

    def keep_posting() -> int:
        """On one connection after the other, each until a response closes it; how many were closed by a response.

        A POST may not be repeated by its client, so a worker that ends gives it a moment to arrive on an idle connection.
        """
        closed = 0
        while not done:
            with connected(gateway.port) as client:
                closes, answered = False, time.monotonic()
                while not done and not closes:
                    client.sendall(get("/", "Content-Length: 0", method="POST"))
                    took = time.monotonic() - answered
                    head = read_head(client)
                    if not head:
                        # A client that stands still between two requests may find the connection closed.
                        assert took > LAST_REQUEST_SECONDS / 2, "a POST was not answered"
                        break
                    read_exactly(client, int(dict(lines_of(head))["content-length"]))
                    closes, answered = b"connection: close" in head.lower(), time.monotonic()
                    closed += closes
        return closed

    with ThreadPoolExecutor(5) as pool:
        asking = pool.submit(keep_asking)
        posting = [pool.submit(keep_posting) for _ in range(4)]
        gateway.process.send_signal(signal.SIGHUP)

        def all_replaced() -> bool:
            now = gateway.workers()
            return len(now) == 2 and not now & before

        until(all_replaced, "both are replaced", within=SECONDS)
        done = True
        asking.result()
        assert sum(one.result() for one in posting) > 0
    found += gateway.ask_often(LIMIT)
    assert set(found) == {200, 429}
    assert found[200] == LIMIT


def test_workers_do_not_outlive_their_supervisor(start: Start) -> None:
    gateway = start("--sample", "--workers", "2")
    workers = gateway.workers()
    gateway.process.kill()
    gateway.process.wait()

    def all_gone() -> bool:
        return {state_of(pid) for pid in workers} <= {"", "Z"}

    until(all_gone, "the workers are gone", within=SECONDS)
    gateway.process.communicate(timeout=SECONDS)


def test_rules_are_followed_in_every_worker(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "followed.yaml"
    file.write_text(RULES % LIMIT)
    gateway = start("--sample", "--workers", "2", "--no-access-log", rules=file)
    assert gateway.ask_often(LIMIT + 1)[429] == 1
    new = file.with_suffix(".new")
    new.write_text(RULES % 100_000)
    new.replace(file)
    until(lambda: set(gateway.ask_often(40)) == {200}, "all of them know", within=SECONDS)


def test_each_counts_by_itself_if_it_is_told_so(start: Start) -> None:
    gateway = start("--sample", "--workers", "2", "--no-access-log", "--local-store", "memory://")
    until(lambda: gateway.ask_often(2 * LIMIT)[200] == 0, "both are used up", within=SECONDS)
    assert not path_of_zone(gateway.zone).exists()


def test_a_signed_request_passes_once_through_all_workers(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APP_KEY", SECRET)
    rules = tmp_path / "signed.yaml"
    rules.write_text(f"filters: [signature: {{keys: {{app: env APP_KEY}}}}]\n{RULES % LIMIT}")
    gateway = start("--sample", "--no-access-log", "--workers", "3", rules=rules)
    signed = signature_lines("app", SECRET.encode(), "GET", "/", time.time_ns() // 1_000)
    request = get("/", *(f"{name}: {value}" for name, value in signed.items()))
    statuses = Counter(status_of(ask(gateway.port, request, SECONDS)) for _ in range(30))
    assert statuses == {200: 1, 401: 29}
    before = gateway.workers()
    gateway.process.send_signal(signal.SIGHUP)
    until(lambda: len(gateway.workers() - before) == 3, "all of them are replaced", within=SECONDS)
    after = Counter(status_of(ask(gateway.port, request, SECONDS)) for _ in range(9))
    assert after == {401: 9}
    options = ["--sample", "--rules", str(rules), "--workers", "3", "--local-store", "memory://"]
    alone = subprocess.run(
        [sys.executable, "-m", "diana", "gateway", "--bind", "127.0.0.1:0", *options],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (alone.returncode, alone.stdout) == (1, "")
    assert "local_store must be shared://NAME" in alone.stderr


def test_workers_that_cannot_start_are_said_so_once(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("local_store: shared://a b\n" + RULES % LIMIT)
    command = [sys.executable, "-m", "diana", "gateway", "--sample", "--workers", "2"]
    done = subprocess.run(
        [*command, "--bind", "127.0.0.1:0", "--rules", str(file)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 1
    assert done.stderr.count("is no name of a zone") == 1
