"""Real servers: started on free loopback ports, stopped by their own pid."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers.logs import LOGS
from tests.servers.ports import HOST, free_ports

ROOT = Path(__file__).parents[2]

SECONDS = 60.0
"""After which a server that does not start, or does not stop, has failed."""

Start = Callable[..., int]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """`start("-m", "uvicorn", "--port", "{port}", …)` runs Python in examples/ and gives the port once it is open."""
    home = tmp_path_factory.mktemp("servers")
    running: list[tuple[subprocess.Popen[bytes], Path]] = []

    def started(*command: str) -> int:
        return next(port for port in free_ports() if listens_on(port, *command))

    def listens_on(port: int, *command: str) -> bool:
        log = home / f"{port}.log"
        LOGS.open(f"{' '.join(command[:2])} on port {port}", log)
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
        return _listens(process, port, log)

    yield started
    for process, _ in running:
        process.terminate()
    for process, log in running:
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"it does not stop:\n{log.read_text()}") from None
        finally:
            LOGS.close(log)


def _listens(process: subprocess.Popen[bytes], port: int, log: Path) -> bool:
    """Once it does. False: another program was there before it."""
    for _ in range(int(SECONDS / 0.01)):
        if process.poll() is not None:
            told = log.read_text()
            assert re.search("address already in use|connection in use", told, re.IGNORECASE), told
            return False
        try:
            socket.create_connection((HOST, port), SECONDS).close()
        except ConnectionRefusedError:
            time.sleep(0.01)
        else:
            return True
    raise AssertionError(f"it does not start:\n{log.read_text()}")
