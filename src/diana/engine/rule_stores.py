"""Where the rules of a policy count: here, in the store of the fleet, or in leases of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from diana.core.charge import charged_at
from diana.core.contracts import Client, Store
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.errors import ConfigError, DianaError
from diana.core.matched_rules import HERE, LEASED
from diana.core.policy import Policy
from diana.core.rule import Rule
from diana.stores import asynchronous, open_store

log = logging.getLogger("diana")


class RuleStores:
    """Opened once for a policy and all that come after it."""

    def __init__(
        self,
        policy: Policy,
        store: str | Store | Client | None,
        local_store: str | Store | None,
    ) -> None:
        settings = policy.settings
        where = settings.local_store if local_store is None else local_store
        self.local = open_store(where)
        self._check_meter: Callable[[CounterSpec], None] | None = getattr(
            self.local, "check_meter", None
        )
        self.check_fits(policy)
        chosen = store
        if chosen is None:  # not `or`: an empty store is false
            chosen = os.environ.get("DIANA_STORE") or settings.store
        self.shared = self.local
        if chosen is not None:
            self.shared = open_store(
                chosen,
                namespace=settings.namespace,
                budget_us=settings.store_budget_us,
                nodes=settings.nodes,
                weight=settings.weight,
                zone=self.local if hasattr(self.local, "node") else None,
                lease=settings.lease,
            )
        self.leased: Store = getattr(self.shared, "leased", self.shared)
        """Where permits are leased; a store that knows no leases counts them as those of scope global."""
        self._publish_limit: Callable[[CounterSpec], None] | None = getattr(
            self.shared, "publish_limit", None
        )
        self.are_one = self.shared is self.local
        self.in_loop = {
            id(elsewhere): asynchronous(elsewhere) for elsewhere in (self.shared, self.leased)
        }
        """The sides of those that would block."""
        self.owned = [self.local] if isinstance(where, str) else []
        """Those to be closed with the guard."""
        if isinstance(chosen, str):
            self.owned.append(self.shared)
        if settings.require_store:
            self._require(is_chosen=chosen is not None)
        self._warned = chosen is not None
        self.warn_if_not_shared(policy)

    def _require(self, *, is_chosen: bool) -> None:
        """ConfigError without a store; StoreError if it cannot be reached or refuses the login."""
        check_reachable = getattr(self.shared, "check_reachable", None)
        try:
            if not is_chosen:
                raise ConfigError(
                    "store must be a URL, because require_store is true (got none); write store: redis://HOST:PORT, set DIANA_STORE, "
                    "or remove require_store"
                )
            if check_reachable is not None:
                check_reachable()
        except DianaError:
            for store in self.owned:
                store.close()
            raise

    def of(self, rule: Rule) -> Store:
        if rule.scope in HERE:
            return self.local
        return self.leased if rule.scope == LEASED else self.shared

    def publish_zero(self, rule: Rule) -> None:
        """A rule of limit 0 is charged in no store, and commands find it in the store nevertheless, in place of its former limit."""
        if (
            self._publish_limit is not None
            and rule.meter.denies_all
            and rule.scope not in HERE
            and rule.scope != LEASED
        ):
            self._publish_limit(rule.meter)

    def charged_at(self, store: Store, meter: CounterSpec, decision: Decision) -> int:
        """The moment under which a charge is refunded. What a lease reports of a counter is older than the charge."""
        is_lease = store is self.leased and self.leased is not self.shared
        return decision.at if is_lease else charged_at(meter, decision)

    def check_fits(self, policy: Policy) -> None:
        """ConfigError if the local store cannot keep what a rule has to remember; it counts global ones too, should the store be lost."""
        if self._check_meter is None:
            return
        for rule in policy.rules:
            tiers = () if rule.tiers is None else rule.tiers.meters.values()
            overrides = (one.meter for one in rule.overrides.values())
            for meter in (rule.meter, *tiers, *overrides):
                if not meter.denies_all and (rule.scope != "global" or meter.when_down == "local"):
                    _check_fit(self._check_meter, meter, rule)

    def check_fit(self, meter: CounterSpec) -> None:
        if self._check_meter is not None and not meter.denies_all:
            self._check_meter(meter)

    def warn_if_not_shared(self, policy: Policy) -> None:
        """Once: rules that were to count for a fleet count here."""
        if self._warned:
            return
        for scope in ("global", "leased"):
            if any(rule.scope == scope for rule in policy.rules):
                self._warned = True
                log.warning(
                    "no store is set, so rules of scope %s count on this machine only", scope
                )


def _check_fit(check: Callable[[CounterSpec], None], meter: CounterSpec, rule: Rule) -> None:
    try:
        check(meter)
    except ConfigError as error:
        place = rule.position
        if place is None:
            raise
        raise place.mistake(error.message, error.path) from None
