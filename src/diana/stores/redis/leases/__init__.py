"""Leases in one process: the table, the thread that fills it, and the decisions that no lease can make. Made anew after a fork.

lease          what this node holds of one counter
lease_table    all leases of this node, and which counters are hot
recent_denials denials of counters without a lease, remembered for a moment
zone_lease     leases that the processes of a machine hold together, in their zone
lease_request  what a node asks of a counter's pool, and the pool's reply
lease_renewer  the thread that asks for permits before they are needed
lease_misses   decisions that no lease can make
"""

from __future__ import annotations

from collections.abc import Callable

from diana.core.contracts import Zone
from diana.core.counter import CounterSpec
from diana.core.node_share import Shares
from diana.core.settings import LeaseTerms
from diana.runtime.clock import wall_us
from diana.stores.redis.app_client import ClientKeeper
from diana.stores.redis.deny_cache import DenyCache
from diana.stores.redis.leases.lease_misses import LeaseDecider
from diana.stores.redis.leases.lease_renewer import LeaseRenewer
from diana.stores.redis.leases.lease_request import WireLimits
from diana.stores.redis.leases.lease_table import LeaseTable
from diana.stores.redis.leases.zone_lease import ZoneLeaseTable
from diana.stores.redis.local_fallback import Fallback
from diana.stores.redis.maintenance.topology_refresh import TopologyRefresh
from diana.stores.redis.protocol.wire_format import CounterEncoder


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
