"""What clients that mean harm cost the gateway, and what others notice of it.

Gateway, service, attackers and an ordinary client are four processes. Memory is what the gateway's process has more of at its highest
during the attack; it includes the transient. A gateway is started anew for each attack.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import NamedTuple
from urllib.request import urlopen

from benchmarks.report import Figure, Goal, Section, at_most
from benchmarks.wrk import Served, started

BODY_SECONDS = 2.0
DESCRIPTORS = 256


class Attack(NamedTuple):
    name: str
    what: str
    by_bytes: bool = True
    """Does it send much, so that memory is counted per byte?"""


ATTACKS = (
    Attack("deflate", "WebSocket, deflated messages"),
    Attack("pings", "WebSocket, pings of 10 who do not read"),
    Attack("messages", "WebSocket, messages that the upstream does not take"),
    Attack("pipelining", "20 who pipeline without end"),
    Attack("senders", "100 bodies at 2 bytes per second", by_bytes=False),
    Attack("readers", "20 who do not read an endless answer"),
    Attack("silent", f"300 silent connections, {DESCRIPTORS} descriptors", by_bytes=False),
    Attack("interim", "an upstream that says 102 without end"),
)


class Measured(NamedTuple):
    memory: int
    """Bytes more than before."""
    received: int
    open_seconds: float
    calm_ms: float
    attacked_ms: float


def run(quick: bool) -> Section:
    rounds, seconds = (1, 3) if quick else (3, 3)
    figures = []
    for attack in ATTACKS:
        measured = [_measured(attack, seconds) for _ in range(rounds)]
        figures += _figures(attack, measured)
    return Section(
        name="attacks",
        title="what attackers cost, and what others notice",
        how=f"Gateway, service, attacker and an ordinary client in processes of their own; {rounds} rounds of {seconds} s, the gateway "
        f"started anew, with `--body-timeout {BODY_SECONDS:g}s`. Memory: the highest of the gateway's resident memory less what it was "
        "before, per byte that it received of the attacker, or of the upstream that plays along. Held: how long the attacker's "
        "connections were open, per byte it sent. p99: of an ordinary client with a new connection for every tenth request, during the "
        "attack, and compared with the same client before it. Attackers send at most 4 MB per second. Medians of the rounds.",
        figures=figures,
        libraries=("diana-limiter", "uvicorn", "aiohttp", "websockets"),
        quick=quick,
    )


def _figures(attack: Attack, measured: list[Measured]) -> list[Figure]:
    memory = median(one.memory for one in measured)
    received = median(one.received for one in measured)
    slower = median(one.attacked_ms / one.calm_ms for one in measured)
    goals: tuple[Goal, ...] = ()
    if attack.by_bytes:
        ratio = memory / max(1.0, received)
        note = f"{memory / 1e6:.1f} MB for {received / 1e6:.2f} MB"
        goals = (at_most(ratio, 4, "× the bytes"),)
        shown = Figure(
            f"{attack.what}: memory",
            ratio,
            "× the bytes",
            note=note,
            goals=goals,
        )
    else:
        shown = Figure(
            f"{attack.what}: memory", memory / 1e6, "MB", note=f"{received:,.0f} bytes received"
        )
    per_byte = median(one.open_seconds / max(1, one.received) for one in measured)
    return [
        shown,
        Figure(f"{attack.what}: held", per_byte * 1e3, "ms per byte"),
        Figure(
            f"{attack.what}: p99 of others",
            median(one.attacked_ms for one in measured),
            "ms",
            {"× as before": slower},
            goals=(at_most(slower, 2, "× as before"),),
        ),
    ]


def _measured(attack: Attack, seconds: float) -> Measured:
    with (
        started("benchmarks.attackers", "service") as service,
        started("benchmarks.attacks", str(service.port), attack.name) as gateway,
    ):
        _ordinary(gateway, 1)  # warm
        calm = _ordinary(gateway, seconds)
        before = _resident(gateway.pid)
        over = Event()
        highest = [before]

        def watch() -> None:
            while not over.wait(0.005):
                highest[0] = max(highest[0], _resident(gateway.pid))

        watching = Thread(target=watch)
        watching.start()
        attacker = _process(attack.name, gateway, seconds + 1)
        attacked = _ordinary(gateway, seconds)
        sent, open_seconds = attacker.communicate()[0].split()
        over.set()
        watching.join()
        with urlopen(f"http://127.0.0.1:{service.port}/sent") as told:
            poured = int(told.read())
        return Measured(
            highest[0] - before, int(sent) + poured, float(open_seconds), calm, attacked
        )


def _ordinary(gateway: Served, seconds: float) -> float:
    return float(_process("ordinary", gateway, seconds).communicate()[0])


def _process(what: str, gateway: Served, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.attackers", what, str(gateway.port), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _serve(upstream: str, attack: str) -> None:
    from diana.gateway.app import gateway
    from diana.gateway.client_limits import ClientLimits
    from diana.gateway.server import bound_socket, serve
    from diana.gateway.upstream import upstream_from_url
    from diana.guard import AsyncGuard
    from diana.rules.loading import rules_from_bytes

    if attack == "silent":
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    policy = rules_from_bytes(
        b"limits: [{url: /, rules: [{actor: ip, unit: second, rpu: 1000000}]}]"
    )
    bounds = ClientLimits(body_seconds=BODY_SECONDS)
    app = gateway(
        AsyncGuard(policy), upstream_from_url(f"http://127.0.0.1:{upstream}"), bounds=bounds
    )
    with bound_socket("127.0.0.1", 0) as listening:
        print(listening.getsockname()[1], flush=True)
        serve(app, listening, grace_seconds=1, bounds=bounds)


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2])
