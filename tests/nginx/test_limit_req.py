"""A leaky bucket decides as the real `limit_req` of nginx does, by nginx's own clock.

nginx keeps time in milliseconds, by a clock that the kernel moves every few of them, and rates in thousandths of a request per second; so
1001r/m is compared at what nginx makes of it, 16.683 a second. Where a decision differs, its margin must be within that tick; then
nginx's decision is taken over, so that one of them does not explain others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import pytest

from diana.algorithms import bucket
from diana.algorithms.leaky_bucket import leaky_bucket
from diana.core.limit import Limit
from tests.servers.nginx import PROGRAM
from tests.servers.ports import HOST
from tests.servers.process import Process
from tests.servers.waiting import until

TICK_US = 10_000
"""The kernel's coarse clock, at its coarsest, and rounding to milliseconds on both sides."""
REQUESTS = 500
ORDER = ["PASSED", "DELAYED", "REJECTED"]


class Zone(NamedTuple):
    rate: str
    thousandths: int
    """What nginx makes of it, per second."""
    burst: int
    option: str = ""


ZONES = {
    "plain": Zone("30r/s", 30_000, 0),
    "queue": Zone("25r/s", 25_000, 6),
    "nodelay": Zone("20r/s", 20_000, 5, "nodelay"),
    "delay": Zone("25r/s", 25_000, 8, "delay=4"),
    "minutes": Zone("1001r/m", 16_683, 5, "nodelay"),
}


class LimitReq(Process):
    ready = b"start worker process"
    has_workers = True

    def _command(self, port: int) -> list[str]:
        zones = "".join(
            f"limit_req_zone $server_name zone={name}:1m rate={zone.rate};\n"
            for name, zone in ZONES.items()
        )
        locations = "".join(
            f"location = /{name} {{ set $arrived $msec; "
            f"limit_req zone={name} {f'burst={zone.burst}' if zone.burst else ''} {zone.option}; "
            f"access_log {self.folder}/{name}.log told; empty_gif; }}\n"
            for name, zone in ZONES.items()
        )
        temporary = "\n".join(
            f"{kind}_temp_path {self.folder}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        configuration = self.folder / "nginx.conf"
        configuration.write_text(
            f"daemon off; worker_processes 1; pid {self.folder}/nginx.pid; error_log stderr notice;\n"
            f"events {{ worker_connections 1024; }}\nhttp {{ {temporary} log_format told '$arrived $limit_req_status';"
            f" access_log off;\n{zones} server {{ listen {HOST}:{port}; server_name one; "
            f"keepalive_requests 100000;\n{locations} }} }}\n"
        )
        return [PROGRAM, "-p", str(self.folder), "-c", str(configuration)]

    def told(self, name: str) -> list[tuple[int, str]]:
        """When each request came and what became of it. Of those of one moment the level says who was first: it only rises."""
        lines = [line.split() for line in (self.folder / f"{name}.log").read_text().splitlines()]
        found = [(int(arrived.replace(".", "")) * 1_000, said) for arrived, said in lines]
        return sorted(found, key=lambda one: (one[0], ORDER.index(one[1])))


@pytest.fixture(scope="module")
def nginx() -> Iterator[LimitReq]:
    with LimitReq() as nginx:
        asyncio.run(_visit(nginx))
        until(
            lambda: all(len(nginx.told(name)) == REQUESTS for name in ZONES),
            "nginx has written its log",
        )
        yield nginx


async def _visit(nginx: LimitReq) -> None:
    """At random, about as often as the rate allows, and every now and then twenty at once: a slow machine sees denials, too."""

    async def visit(name: str, zone: Zone) -> None:
        random = Random(name)
        asked = []
        for number in range(REQUESTS):
            asked.append(asyncio.create_task(_get(nginx.port, f"/{name}?n={number}")))
            if number % 100 >= 20:
                pause = random.choice([0, 0.3, 0.6, 1, 1.8])
                await asyncio.sleep(pause * 1_000 / zone.thousandths)
        await asyncio.gather(*asked)

    await asyncio.gather(*[visit(name, zone) for name, zone in ZONES.items()])


async def _get(port: int, path: str) -> None:
    """Without a client that does more: of thousands of requests that is what costs most."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    assert (await reader.read()).startswith(b"HTTP/1.1 ")
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("name", ZONES)
def test_decisions_are_those_of_limit_req(nginx: LimitReq, name: str) -> None:
    zone = ZONES[name]
    options: dict[str, object] = {"burst": zone.burst}
    if zone.option == "nodelay":
        options["nodelay"] = True
    elif zone.option:
        options["delay"] = int(zone.option.partition("=")[2])
    params = leaky_bucket.params(Limit(zone.thousandths, 1_000_000_000), **options)
    assert isinstance(params, bucket.BucketParams)
    tick = TICK_US // params.tick * params.leak
    state: tuple[int, ...] | None = None
    others, seen = 0, set()
    for now, said in nginx.told(name):
        level, stamp = bucket.leaked(state, params, now) if state else (0, now)
        after, outcome = bucket.decide(state, params, 1, now)
        ours = "REJECTED" if not outcome[0] else "DELAYED" if outcome[4] else "PASSED"
        seen.add(said)
        if ours != said:
            others += 1
            bounds = (params.capacity - params.per, params.free)
            assert min(abs(level - bound) for bound in bounds) <= tick, (name, now, ours, said)
        if said == "REJECTED":
            continue
        state = after if outcome[0] else (level + params.per, stamp, params.per)
    assert "REJECTED" in seen
    assert len(seen) > 1
    print(f"{name}: {others} of {REQUESTS} within a tick of the boundary")
    assert others < REQUESTS / 4
