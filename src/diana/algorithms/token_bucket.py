"""Token bucket: a burst at once, then a steady rate.

A bucket of `burst` tokens is full at first; every request takes one, and rpu tokens per unit drip back until it is full again. In
any interval t at most burst + rpu·t/unit pass. Callers like it: who was quiet may hurry.

    10 per second, burst 3        ✓ ✓ ✓ ✗       ✓         ✓
                            ──────┴─┴─┴─┴───────┴─────────┴────▶
                                  0 ms         100       200

What is left of the bucket is the mirror image of a leaking one, so the kernel is `bucket.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diana.algorithms import bucket
from diana.core.contracts import Algorithm
from diana.core.errors import ConfigError, shown
from diana.core.limit import LARGEST_RPU, Limit
from diana.core.node_share import slowed


class TokenBucket:
    code = "TB"
    spelling = "token bucket"
    options: tuple[str, ...] = ("burst",)
    identity: tuple[str, ...] = ()
    examples: tuple[Mapping[str, Any], ...] = ({}, {"burst": 1}, {"burst": 7}, {"burst": 1_000})

    def params(self, limit: Limit, burst: int | None = None) -> bucket.BucketParams:
        return self.params_of_tiers([(limit, {} if burst is None else {"burst": burst})])[0]

    def params_of_tiers(
        self, tiers: Sequence[tuple[Limit, Mapping[str, Any]]]
    ) -> list[bucket.BucketParams]:
        sizes = [options.get("burst", limit.rpu) for limit, options in tiers]
        for size in sizes:
            if size.__class__ is not int or not 1 <= size <= LARGEST_RPU:
                raise ConfigError(
                    f"burst is {shown(size)}; a token bucket holds a whole number of tokens from 1",
                    path="burst",
                )
        most = max(sizes)
        scales = bucket.scales_from_limits([limit for limit, _ in tiers], most)
        return [
            bucket.bucket_params(scale, size * scale.per, size * scale.per, most * scale.per)
            for scale, size in zip(scales, sizes, strict=True)
        ]

    def share(
        self, limit: Limit, options: Mapping[str, Any], nodes: int, weight: int = 1
    ) -> tuple[Limit, dict[str, Any]]:
        burst = options.get("burst", limit.rpu)
        return slowed(limit, nodes, weight), {"burst": max(1, burst * weight // nodes)}

    @staticmethod
    def uncapped(params: bucket.BucketParams) -> bucket.BucketParams:
        """Twice the room. What is found above the limit is cut off when it is next read, as after an edit."""
        return bucket.with_room(params, 2)

    lua = bucket.LUA
    kernel = "bucket"
    decide = staticmethod(bucket.decide)
    refund = staticmethod(bucket.refund)
    promise = staticmethod(bucket.promise)


token_bucket: Algorithm = TokenBucket()
