"""Real servers: started on free loopback ports, stopped by their own pid."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

Start = Callable[..., int]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """`start("-m", "uvicorn", "--port", "{port}", …)` runs Python in examples/ and gives the port once it is open."""
    home = tmp_path_factory.mktemp("servers")
    running: list[tuple[subprocess.Popen[bytes], Path]] = []

    def started(*command: str) -> int:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
        log = home / f"{port}.log"
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), str(ROOT / "examples")])
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *(part.format(port=port) for part in command)],
                cwd=ROOT / "examples",
                env={**os.environ, "PYTHONPATH": paths, "HOME": str(home)},
                stdout=output,
                stderr=output,
            )
        running.append((process, log))
        _until_it_is_open(process, port, log)
        return port

    yield started
    for process, _ in running:
        process.terminate()
    for process, log in running:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"it does not stop:\n{log.read_text()}") from None


def _until_it_is_open(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    for _ in range(3_000):
        assert process.poll() is None, log.read_text()
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    raise AssertionError(f"it does not start:\n{log.read_text()}")
