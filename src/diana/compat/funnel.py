"""The funnel of many textbooks: a capacity, a leak rate, and the space that is left."""

from __future__ import annotations

from diana.compat.limiters import AnyStore, spelling_from_rate, whole
from diana.core.contracts import Clock
from diana.limiter import Limiter


class Funnel:
    """`Funnel(15, 0.5).watering()`: fifteen drops at once, then one every two seconds."""

    def __init__(
        self,
        capacity: int,
        leak_rate: float,
        *,
        key: str = "funnel",
        store: AnyStore = "memory://",
        name: str = "funnel",
        clock: Clock | None = None,
    ) -> None:
        self._limiter = Limiter(
            spelling_from_rate("leak_rate", leak_rate),
            burst=whole("capacity", capacity),
            store=store,
            name=name,
            clock=clock,
        )
        self._key = key

    def watering(self, quota: int = 1) -> bool:
        """Pour in so much, if there is room for all of it."""
        return bool(self._limiter.take(self._key, whole("quota", quota)))

    @property
    def left_quota(self) -> int:
        """The space that is left now, in whole drops."""
        return self._limiter.take(self._key, 0).remaining
