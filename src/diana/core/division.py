"""One node's share of a limit: rate L/(U·n), burst max(1, burst/n).

Rounded down wherever it must be whole, so that the shares of n nodes never add up to more than the limit, but for the one request
that every node may always admit.
"""

from __future__ import annotations

from math import gcd

from diana.core.errors import ConfigError
from diana.core.limit import Limit
from diana.core.meter import Meter


def divided(meter: Meter, nodes: int) -> Meter:
    """The same counter with a share of the limit. An algorithm that knows better than to divide the count has a `share`."""
    if nodes <= 1:
        return meter
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
