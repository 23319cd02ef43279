"""Two runs of the tests at once do not take each other's ports."""

from __future__ import annotations

import socket
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.servers import ports
from tests.servers.ports import HOST, free_port, free_ports

ROOT = Path(__file__).parents[2]
SHOWS = "from tests.servers.ports import free_port; print(free_port(), flush=True); input()"


def test_a_port_is_not_offered_twice_in_a_row_though_nothing_listens_on_it() -> None:
    offered = list(islice(free_ports(), 100))
    assert len(set(offered)) == len(offered)
    assert free_port() not in offered


def test_another_process_is_offered_others() -> None:
    ours = free_port() // ports._BLOCK
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SHOWS],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    try:
        offered = [int(one.stdout.readline()) // ports._BLOCK for one in running if one.stdout]
        assert len({ours, *offered}) == 4
    finally:
        for one in running:
            one.communicate("\n")


def test_when_there_is_none_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    free_port()  # or this process would take its ports, for good, from the range below
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((HOST, 0))
        taken = other.getsockname()[1]
        monkeypatch.setattr(ports, "_PORTS", range(taken, taken + ports._BLOCK))
        with pytest.raises(OSError, match=f"all 1 blocks of {taken}-.* are in use"):
            ports._our_lease.__wrapped__()
    monkeypatch.setattr(ports, "_is_free", lambda port: False)
    with pytest.raises(OSError, match="no free port: all 250 around"):
        free_port()
