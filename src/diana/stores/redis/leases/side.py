"""Leases in one process: the table, the thread that fills it, and the decisions it does not answer. Made anew after a fork."""

from __future__ import annotations

from collections.abc import Callable

from diana.core.contracts import Zone
from diana.core.division import Shares
from diana.core.lease import LeaseTerms
from diana.core.meter import CounterSpec
from diana.stores.clock import wall_us
from diana.stores.redis.background.keeper import TopologyRefresh
from diana.stores.redis.connection.client import ClientKeeper
from diana.stores.redis.deny_cache import DenyCache
from diana.stores.redis.fallback import Fallback
from diana.stores.redis.leases.asking import WireLimits
from diana.stores.redis.leases.decide import LeaseDecider
from diana.stores.redis.leases.in_zone import ZoneLeaseTable
from diana.stores.redis.leases.refiller import LeaseRenewer
from diana.stores.redis.leases.table import LeaseTable
from diana.stores.redis.protocol.wire import CounterEncoder


class LeaseSide:
    def __init__(
        self,
        keeper: TopologyRefresh | ClientKeeper,
        terms: LeaseTerms,
        shares: Shares,
        fallback: Fallback,
        budget: float,
        count: Callable[..., None],
        zone: Zone | None = None,
        pool: str = "",
    ) -> None:
        """`zone`: in which the processes of this machine hold leases together; `pool`: what the store is called there."""

        def learn(key: bytes, used: int) -> None:
            fallback.learn(key, used, wall_us())

        limits = WireLimits()
        self._refiller: LeaseRenewer | None = None
        # Other gateways are not told of leased limits: they would not heed what nodes hold.
        self.decider = LeaseDecider(
            keeper, CounterEncoder(_tell_nobody), DenyCache(), fallback, count
        )
        if isinstance(keeper, TopologyRefresh):
            refiller = LeaseRenewer(limits, keeper.server_of, keeper.look_around, budget, count)
            if zone is None:
                self.table = LeaseTable(keeper.node, terms, shares, refiller.wake, learn)
            else:
                self.table = ZoneLeaseTable(zone, pool, terms, shares, refiller.wake, learn)
            self._refiller = refiller
            refiller.table = self.table
            keeper.tell_of_leases(self.table.told)
        else:
            self.table = LeaseTable("", terms, shares, None, learn)
        self.decider.table, self.decider.limits = self.table, limits

    def stop(self) -> None:
        if self._refiller is not None:
            self._refiller.stop()

    def close(self) -> None:
        """Give back what is held."""
        if self._refiller is not None:
            self._refiller.close()

    def abandon(self) -> None:
        if self._refiller is not None:
            self._refiller.abandon()


def _tell_nobody(_: bytes, __: CounterSpec) -> None:
    """Nothing is published."""
