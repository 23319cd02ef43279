"""Arrivals summed over the fleet: each node says with its heartbeat how often its most frequent keys were asked for, and hears the sums.

Two hashes in turn, one for each second of the store's clock: what was said in the last is complete.
"""

from __future__ import annotations

from diana.stores.arrivals import Arrivals
from diana.stores.redis.protocol.commands import Exchange, call_script
from diana.stores.redis.protocol.script import scripts


def arrival_keys(namespace: str) -> list[bytes]:
    """In the slot of the list of nodes."""
    return [f"{{{namespace}:nodes}}:arrivals:{turn}".encode() for turn in (0, 1)]


def exchange_arrivals(namespace: str, arrivals: Arrivals) -> Exchange:
    """Say ours, and hear the sums."""
    said = arrivals.report()
    if not said:
        return
    argv = [
        word for key, rate in said.items() for word in (key.encode("utf-8", "surrogatepass"), rate)
    ]
    sums = yield from call_script(scripts()["arrivals"], arrival_keys(namespace), argv)
    arrivals.hear(dict(zip(said, map(float, sums), strict=True)))
