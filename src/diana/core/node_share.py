"""One node's share of a limit: rate L·w/(U·n), burst max(1, burst·w/n), for a node of weight w among nodes that weigh n together.

Rounded down wherever it must be whole, so that the shares of all nodes never add up to more than the limit, but for the one request
that every node may always admit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

from diana.core.counter import CounterGroup, CounterSpec, LimitWithOptions, params_of_tiers
from diana.core.errors import ConfigError
from diana.core.limit import Limit

MOST_SHARES = 10_000
"""Meters whose share is remembered."""


class Share(NamedTuple):
    """This node's part of every limit that is divided: `weight` of `total`."""

    weight: int = 1
    total: int = 1
    """What all nodes weigh together; if each weighs 1, how many there are."""

    def __str__(self) -> str:
        return f"{self.weight} of {self.total}"


def share_without_registry(weight: int, nodes: int) -> Share:
    """While nothing is heard of the others, `nodes` says what they weigh together."""
    return Share(weight, max(nodes, weight))


class Shares:
    """The share of this node, which changes as nodes come and go, and the meters under it."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self._meters: dict[tuple[CounterSpec, Share], CounterSpec] = {}

    def of(self, meter: CounterSpec) -> CounterSpec:
        """The same counter under the numbers of this node."""
        place = (meter, self.share)
        known = self._meters.get(place)
        if known is None:
            if len(self._meters) >= MOST_SHARES:
                self._meters.clear()
            known = self._meters[place] = divided(meter, place[1].total, place[1].weight)
        return known


def divided(meter: CounterSpec, nodes: int, weight: int = 1) -> CounterSpec:
    """The same counter with a share of the limit. An algorithm that knows better than to divide the count has a `share`."""
    common = gcd(nodes, weight)
    nodes, weight = nodes // common, weight // common
    if nodes <= weight:
        return meter
    family = meter.family
    tiers = family.tiers if family is not None else ()
    terms = (meter.limit, meter.options)
    if terms in tiers:
        share = _share_of_tier(meter, tiers, tiers.index(terms), nodes, weight)
    else:
        share = _divided(meter, nodes, weight)
    if family is not None:
        share.family = CounterGroup(family.deny_memory_us)
        for limit, options in family.extremes:
            alone = CounterSpec(meter.id, limit, meter.algorithm, meter.params, options)
            share.family.include(_divided(alone, nodes, weight))
    return share


def _share_of_tier(
    meter: CounterSpec, tiers: Sequence[LimitWithOptions], place: int, nodes: int, weight: int
) -> CounterSpec:
    """The share of one tier, in one scale with those of the others."""
    algorithm = meter.algorithm
    share = getattr(algorithm, "share", None)
    if share is None:
        return _divided(meter, nodes, weight)
    shares = [share(limit, dict(options), *_parts(nodes, weight)) for limit, options in tiers]
    try:
        params = params_of_tiers(algorithm, shares)
    except ConfigError:
        return _divided(meter, nodes, weight)
    limit, options = shares[place]
    return CounterSpec(meter.id, limit, algorithm, params[place], options, meter.when_down)


def _divided(meter: CounterSpec, nodes: int, weight: int) -> CounterSpec:
    algorithm = meter.algorithm
    share = getattr(algorithm, "share", None)
    limit, options = _share_of_count(meter.limit, nodes, weight), dict(meter.options)
    if share is not None:
        limit, options = share(meter.limit, options, *_parts(nodes, weight))
    try:
        params = algorithm.params(limit, **options)
    except (
        ConfigError
    ):  # rounding made its options contradict each other, or the rate too odd to count
        limit, options = _share_of_count(meter.limit, nodes, weight), {}
        params = algorithm.params(limit)
    # A bucket's level is converted to another rate; a window of another length is another counter.
    id = meter.id if share or limit.unit_us == meter.limit.unit_us else f"{meter.id}|{limit}"
    return CounterSpec(id, limit, algorithm, params, options, meter.when_down)


def _parts(nodes: int, weight: int) -> tuple[int, ...]:
    """What a `share` is told: the weight only where it is another than 1."""
    return (nodes,) if weight == 1 else (nodes, weight)


def slowed(limit: Limit, nodes: int, weight: int = 1) -> Limit:
    """A rate n times slower, and w times faster, exactly."""
    rpu, unit_us = limit.rpu * weight, limit.unit_us * nodes
    common = gcd(rpu, nodes)
    return Limit(rpu // common, unit_us // common)


def _share_of_count(limit: Limit, nodes: int, weight: int) -> Limit:
    rpu = limit.rpu * weight
    if rpu >= nodes:
        return Limit(rpu // nodes, limit.unit_us)
    return Limit(1, limit.unit_us * -(-nodes // rpu))
