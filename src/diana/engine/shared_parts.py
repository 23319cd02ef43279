"""What evaluators on the same stores share: opened once for a guard, and used by the limits of its routes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

from diana.core.contracts import Client, Clock, Observer, Store
from diana.core.errors import ConfigError, shown
from diana.core.limit_adjustments import LiveOverrides
from diana.core.node_share import Shares, share_without_registry
from diana.core.policy import Policy
from diana.engine.observers import StoreCounts
from diana.engine.random_early_drop import RandomEarlyDrop
from diana.engine.refunds import RefundPlanner
from diana.engine.rule_stores import RuleStores
from diana.runtime.clock import checked_clock
from diana.runtime.entry_points import plugin
from diana.slots.wait_queue import WaitQueues
from diana.stores.arrival_rates import Arrivals


class SharedParts(NamedTuple):
    stores: RuleStores
    clock: Clock | None
    observers: tuple[Observer, ...]
    queues: WaitQueues
    """Of requests that wait for a slot."""
    refunds: RefundPlanner
    counts: StoreCounts
    stored_overrides: LiveOverrides
    """The overrides that stand in the store."""
    shares: Shares
    """What this node gets of a limit that is divided."""
    dropping: RandomEarlyDrop

    @classmethod
    def opened(
        cls,
        policy: Policy,
        store: str | Store | Client | None,
        clock: Clock | None,
        observers: Sequence[str | Observer],
        local_store: str | Store | None = None,
    ) -> SharedParts:
        clock, found = checked_clock(clock), _observers(observers)
        stores, queues = RuleStores(policy, store, local_store), WaitQueues()
        refunds = RefundPlanner(stores, clock, queues)
        counts = StoreCounts(stores.shared, refunds)
        for observer in found:
            if hasattr(observer, "watch"):
                observer.watch(counts)
        overrides: LiveOverrides | None = getattr(stores.shared, "overrides", None)
        shares: Shares | None = getattr(stores.shared, "shares", None)
        settings = policy.settings
        return cls(
            stores=stores,
            clock=clock,
            observers=found,
            queues=queues,
            refunds=refunds,
            counts=counts,
            stored_overrides=LiveOverrides() if overrides is None else overrides,
            shares=shares
            or Shares(share_without_registry(settings.weight or 1, settings.nodes or 1)),
            dropping=RandomEarlyDrop(_arrivals(stores.shared, clock)),
        )


def _arrivals(store: Store, clock: Clock | None) -> Arrivals:
    """The fleet's, unless the clock is the caller's own."""
    if clock is not None:
        return Arrivals(lambda: clock() / 1_000_000)
    arrivals: Arrivals | None = getattr(store, "arrivals", None)
    return Arrivals() if arrivals is None else arrivals


def _observers(observers: Sequence[str | Observer]) -> tuple[Observer, ...]:
    if isinstance(observers, str) or not isinstance(observers, Iterable):
        raise ConfigError(
            f"observers= must be a list (got {shown(observers)}); write observers=[{shown(observers)}]"
        )
    return tuple(map(_observer, observers))


def _observer(observer: str | Observer) -> Observer:
    """By the name of an entry point in diana.observers, or as it is."""
    return (
        cast("Observer", plugin("observers", observer)()) if isinstance(observer, str) else observer
    )
