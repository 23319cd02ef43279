"""Leaky bucket: a queue that releases at a steady rate, for backends that cannot take bursts.

Every admitted request is told how long to wait for its turn, so that releases are unit/rpu apart. The queue has `burst` places
beside the one being released, and nobody waits longer than `max_wait`; who finds it full is denied at once.

    10 per second, burst 2     arrivals   ■■■■
                               releases   ■    ■    ■            the fourth found the queue full
                                        ──┴────┴────┴────▶
                                          0   100  200 ms

`nodelay` keeps the bookkeeping and lets nobody wait; `delay` lets the first so many in the queue go at once. The kernel is
`bucket.py`: the level is the queue, and a request waits until what it found in it, less the free places, has leaked out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from diana.algorithms import bucket
from diana.core.contracts import Algorithm
from diana.core.duration import SECOND_US, micros_from_spelling
from diana.core.errors import ConfigError, shown
from diana.core.limit import LARGEST_RPU, Limit
from diana.core.node_share import slowed


class LeakyBucket:
    code = "LB"
    spelling = "leaky bucket"
    delays = True
    options: tuple[str, ...] = ("burst", "nodelay", "delay", "max_wait")
    identity: tuple[str, ...] = ()
    examples: tuple[Mapping[str, Any], ...] = (
        {},
        {"burst": 0},
        {"burst": 5},
        {"burst": 5, "nodelay": True},
        {"burst": 5, "delay": 2},
        {"max_wait": "2500ms"},
    )

    def params(
        self,
        limit: Limit,
        burst: int | None = None,
        nodelay: bool = False,
        delay: int | None = None,
        max_wait: str | None = None,
    ) -> bucket.BucketParams:
        options = {"burst": burst, "nodelay": nodelay, "delay": delay, "max_wait": max_wait}
        return self.params_of_tiers([(limit, options)])[0]

    def params_of_tiers(
        self, tiers: Sequence[tuple[Limit, Mapping[str, Any]]]
    ) -> list[bucket.BucketParams]:
        queues = [_queue(limit, **options) for limit, options in tiers]
        scales = bucket.scales_from_limits(
            [limit for limit, _ in tiers], max(queue.places for queue in queues) + 1
        )
        capacities = [
            queue.capacity(limit, scale)
            for queue, (limit, _), scale in zip(queues, tiers, scales, strict=True)
        ]
        return [
            bucket.bucket_params(
                scale,
                capacity,
                capacity if queue.nodelay else queue.free * scale.per,
                max(capacities),
            )
            for queue, scale, capacity in zip(queues, scales, capacities, strict=True)
        ]

    def share(
        self, limit: Limit, options: Mapping[str, Any], nodes: int, weight: int = 1
    ) -> tuple[Limit, dict[str, Any]]:
        places = {
            name: options[name] * weight // nodes for name in ("burst", "delay") if name in options
        }
        return slowed(limit, nodes, weight), {**options, **places}

    not_leased = (
        "it releases requests at a steady rate, and permits handed out in advance are used at once"
    )
    lua = bucket.LUA
    kernel = "bucket"
    decide = staticmethod(bucket.decide)
    refund = staticmethod(bucket.refund)
    promise = staticmethod(bucket.promise)


class LeakyBucketOptions(NamedTuple):
    """What the options say, checked."""

    places: int
    """Beside the one being released."""
    free: int
    nodelay: bool
    burst: int | None
    max_wait: str | None
    max_wait_us: int | None

    def capacity(self, limit: Limit, scale: bucket.Scale) -> int:
        """In drops."""
        capacity = (self.places + 1) * scale.per
        if self.max_wait_us is None:
            return capacity
        waiting = (1 + self.free) * scale.per + self.max_wait_us // scale.tick * scale.leak
        if self.burst is not None and waiting < capacity:
            raise ConfigError(
                _contradiction(limit, self.burst, self.free, self.max_wait_us, self.max_wait),
                path="max_wait",
            )
        return min(capacity, waiting)


def _queue(
    limit: Limit,
    burst: int | None = None,
    nodelay: bool = False,
    delay: int | None = None,
    max_wait: str | None = None,
) -> LeakyBucketOptions:
    for option, value in (("burst", burst), ("delay", delay)):
        if value is not None and (value.__class__ is not int or not 0 <= value <= LARGEST_RPU):
            raise ConfigError(
                f"{option} is {shown(value)}; a leaky bucket queues a whole number of requests from 0",
                path=option,
            )
    if nodelay.__class__ is not bool:
        raise ConfigError(f"nodelay is {shown(nodelay)}; write true or false", path="nodelay")
    if nodelay and delay is not None:
        raise ConfigError(
            "nodelay lets nobody wait, so delay has no meaning; drop one", path="delay"
        )
    if nodelay and max_wait is not None:
        raise ConfigError(
            "nodelay lets nobody wait, so max_wait has no meaning; drop one", path="max_wait"
        )
    max_wait_us = _max_wait_us(max_wait, burst)
    places = _places(limit, burst, delay or 0, max_wait_us)
    return LeakyBucketOptions(places, delay or 0, nodelay, burst, max_wait, max_wait_us)


def _max_wait_us(max_wait: str | None, burst: int | None) -> int | None:
    if max_wait is not None:
        if not isinstance(max_wait, str):
            raise ConfigError(
                f"max_wait is {shown(max_wait)}; write a duration such as 2s", path="max_wait"
            )
        return micros_from_spelling(max_wait)
    return SECOND_US if burst is None else None


def _places(limit: Limit, burst: int | None, free: int, max_wait_us: int | None) -> int:
    if burst is not None:
        return burst
    return free + -(-(max_wait_us or 0) * limit.rpu // limit.unit_us)


def _contradiction(
    limit: Limit, burst: int, free: int, max_wait_us: int, max_wait: str | None
) -> str:
    fits = free + max_wait_us * limit.rpu // limit.unit_us
    last_us = -(-(burst - free) * limit.unit_us // limit.rpu)
    return (
        f"burst {burst} contradicts max_wait {max_wait}: at {limit} the last in the queue waits "
        f"{last_us / SECOND_US:g} s; write a burst of at most {fits}, a longer max_wait, or only one of them"
    )


leaky_bucket: Algorithm = LeakyBucket()
