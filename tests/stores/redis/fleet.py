"""Four nodes, each a process, that are cut off from their store while clients ask for ten times the limit."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from diana.core.counter import CounterSpec
from tests.servers.programs import REDIS_7
from tests.servers.proxy import FaultProxy
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.redis.callers import PATIENT, meter, opened, until_asked, used, window

NODES = 4
RATE = 100
PACE = NODES / (10 * RATE)
"""Between two requests of one node: together ten times the limit."""


class Tally(NamedTuple):
    """What one node admitted."""

    there: int
    here: int
    wide: int
    """Of a limit that is never reached."""
    began: float
    ended: float


class Outage(NamedTuple):
    admitted: int
    """By the limit: all nodes together, before and while they were cut off."""
    here: int
    """Of these, while cut off."""
    bound: float
    """The limit, one more burst, and one per node."""
    charged: int
    """Beyond what was admitted by a limit that is never reached, once all is settled."""


def bucket() -> CounterSpec:
    return meter("TB", f"{RATE}/second", "rate")


def cut_off(seconds: float, before: float = 0.3) -> Outage:
    """Ask for so long, cut off but for the very beginning; then settle."""
    spawn = multiprocessing.get_context("spawn")
    with Server(REDIS_7) as server, FaultProxy(server.port) as proxy:
        pairs = [spawn.Pipe() for _ in range(NODES)]
        nodes = [spawn.Process(target=node, args=(proxy.url, end)) for _, end in pairs]
        conductors = [mine for mine, _ in pairs]
        try:
            for process in nodes:
                process.start()
            for conductor in conductors:
                assert _answer(conductor) == "ready"
            begin = time.monotonic()
            for conductor in conductors:
                conductor.send(seconds)
            until(lambda: time.monotonic() - begin > before, "they have used their burst")
            proxy.refuse()
            told: list[Tally] = [_answer(conductor) for conductor in conductors]
            proxy.pass_on()
            for conductor in conductors:
                conductor.send(None)
                assert _answer(conductor) == "settled"
            with opened(server.url, PATIENT) as store:
                until_asked(store, window())
                charged = used(store, window()) - sum(one.wide for one in told)
        finally:
            for process in nodes:
                process.kill()
                process.join()
            for end in (end for pair in pairs for end in pair):
                end.close()
    here = sum(one.here for one in told)
    seconds = max(one.ended for one in told) - min(one.began for one in told)
    bound = RATE * seconds + 2 * RATE + NODES
    return Outage(here + sum(one.there for one in told), here, bound, charged)


def node(url: str, conductor: Connection) -> None:
    """Asks as long as it is told to, and tells how many passed."""
    with opened(url, PATIENT) as store:
        until(lambda: store.shares.share.total == NODES, "all nodes are known")
        conductor.send("ready")
        for seconds in iter(conductor.recv, None):
            there = here = wide = 0
            begin = time.monotonic()
            # Longer, if who cuts it off stands still.
            while (now := time.monotonic()) < begin + seconds or not here:
                (told,) = store.decide([(bucket(), "k", 1)])
                here += told.allowed and told.degraded
                there += told.allowed and not told.degraded
                wide += store.decide([(window(), "k", 1)])[0].allowed
                time.sleep(max(0.0, PACE - (time.monotonic() - now)))
            conductor.send(Tally(there, here, wide, begin, time.monotonic()))
        until(lambda: not store.lost, "it is back")
        until(lambda: not store.decider()._fallback.owes(), "all is sent")
    conductor.send(
        "settled"
    )  # what was on its way has been answered: a store that closes waits for that


def _answer(conductor: Connection) -> Any:
    assert conductor.poll(60)
    return conductor.recv()
