"""One node's share of a limit: rate L/(U·n), burst max(1, burst/n).

Rounded down wherever it must be whole, so that the shares of n nodes never add up to more than the limit, but for the one request
that every node may always admit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from diana.core.errors import ConfigError
from diana.core.limit import Limit
from diana.core.meter import Family, Meter, Terms, params_of_tiers


def divided(meter: Meter, nodes: int) -> Meter:
    """The same counter with a share of the limit. An algorithm that knows better than to divide the count has a `share`."""
    if nodes <= 1:
        return meter
    family = meter.family
    tiers = family.tiers if family is not None else ()
    terms = (meter.limit, meter.options)
    if terms in tiers:
        share = _share_of_tier(meter, tiers, tiers.index(terms), nodes)
    else:
        share = _divided(meter, nodes)
    if family is not None:
        share.family = Family(family.deny_memory_us)
        for limit, options in family.extremes:
            alone = Meter(meter.id, limit, meter.algorithm, meter.params, options)
            share.family.include(_divided(alone, nodes))
    return share


def _share_of_tier(meter: Meter, tiers: Sequence[Terms], place: int, nodes: int) -> Meter:
    """The share of one tier, in one scale with those of the others."""
    algorithm = meter.algorithm
    share = getattr(algorithm, "share", None)
    if share is None:
        return _divided(meter, nodes)
    shares = [share(limit, dict(options), nodes) for limit, options in tiers]
    try:
        params = params_of_tiers(algorithm, shares)
    except ConfigError:
        return _divided(meter, nodes)
    limit, options = shares[place]
    return Meter(meter.id, limit, algorithm, params[place], options, meter.when_down)


def _divided(meter: Meter, nodes: int) -> Meter:
    algorithm = meter.algorithm
    share = getattr(algorithm, "share", None)
    limit, options = _share_of_count(meter.limit, nodes), dict(meter.options)
    if share is not None:
        limit, options = share(meter.limit, options, nodes)
    try:
        params = algorithm.params(limit, **options)
    except (
        ConfigError
    ):  # rounding made its options contradict each other, or the rate too odd to count
        limit, options = _share_of_count(meter.limit, nodes), {}
        params = algorithm.params(limit)
    # A bucket's level is converted to another rate; a window of another length is another counter.
    id = meter.id if share or limit.unit_us == meter.limit.unit_us else f"{meter.id}|{limit}"
    return Meter(id, limit, algorithm, params, options, meter.when_down)


def slowed(limit: Limit, nodes: int) -> Limit:
    """A rate n times slower, exactly."""
    common = gcd(limit.rpu, nodes)
    return Limit(limit.rpu // common, limit.unit_us * (nodes // common))


def _share_of_count(limit: Limit, nodes: int) -> Limit:
    if limit.rpu >= nodes:
        return Limit(limit.rpu // nodes, limit.unit_us)
    return Limit(1, limit.unit_us * -(-nodes // limit.rpu))
