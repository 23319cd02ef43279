"""A limit of 0: every charge is denied, nothing is counted, and no store and no algorithm is queried.

An algorithm would divide by the rate (a bucket), or find no retry (a window). So the rules and the limiters decide before them. A counter
that was charged before its limit became 0 stays as it is, and counts again when the limit is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from diana.core.decision import NEVER
from diana.core.limit import Limit

if TYPE_CHECKING:
    from diana.core.contracts import Algorithm, Params

REFUSED = (False, 0, NEVER, 0, 0)
"""The outcome of a request that is denied whatever was counted."""


class ZeroParams:
    """What a limit of 0 has in place of its algorithm's params: the options that the counter's identity depends on."""

    limit = 0

    def __init__(self, like: Params, identity: Mapping[str, Any]) -> None:
        self.like = like
        """Of a limit of 1 on the same counter."""
        self.__dict__.update(identity)


def params_of_limit(algorithm: Algorithm, limit: Limit, options: Mapping[str, Any]) -> Params:
    """Checks the options; of a limit of 0 only those that its counter depends on, since the others mean nothing."""
    if limit.rpu:
        params: Params = algorithm.params(limit, **options)
        return params
    identity = {name: options[name] for name in algorithm.identity if name in options}
    like = algorithm.params(Limit(1, limit.unit_us), **identity)
    return ZeroParams(like, {name: getattr(like, name) for name in algorithm.identity})
