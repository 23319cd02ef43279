"""Renewing a place in any store."""

from __future__ import annotations

from typing import Any

from diana.core.charge import charged_at
from diana.core.contracts import Store
from diana.core.meter import CounterSpec


def renewed(
    store: Store, charge: tuple[CounterSpec, str, int], at: int, now: int | None = None
) -> int:
    """The place's moment from now on; 0 if it has run off, and all are taken.

    A store that cannot renew gives the place back and takes one: another may come in between, and then it is lost.
    """
    renew: Any = getattr(store, "renew", None)
    if renew is not None:
        moment: int = renew(charge, at, now)
        return moment
    store.refund([charge], at, now)
    (decision,) = store.decide([charge], now)
    return charged_at(charge[0], decision) if decision else 0
