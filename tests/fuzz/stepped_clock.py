"""A clock that steps, as far as stores can be compared: they forget a key half a minute after it is as good as new."""

from __future__ import annotations

from diana.stores.memory import GRACE_US

BEGIN_US = 1_700_000_000_000_000
SECOND_US = 1_000_000


class SteppedClock:
    def __init__(self, now_us: int) -> None:
        self.now_us = now_us
        self.steps_back = 0
        self._lowest = self._highest = now_us

    def __call__(self) -> int:
        return self.now_us

    def advance(self, micros: int) -> None:
        if micros < 0:
            self._step_back(-micros)
        self.now_us += max(0, micros)
        self._highest = max(self._highest, self.now_us)

    def _step_back(self, micros: int) -> None:
        """Past the grace only if so little time has passed that no key is forgotten yet."""
        target = self.now_us - micros
        grace = GRACE_US - SECOND_US
        if target < self._highest - grace:
            if self._highest - self._lowest < grace:
                self._lowest = self._highest = target
            else:
                target = min(self.now_us, self._highest - grace)
        self._lowest = min(self._lowest, target)
        self.steps_back += target < self.now_us
        self.now_us = target
