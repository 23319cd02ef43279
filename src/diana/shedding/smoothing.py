"""Exponential smoothing by time, not by number of samples: a thread that was late counts its sample for as long as it was away."""

from __future__ import annotations

from math import exp


class Smoothing:
    """The first sample is taken as it is; of a later one, 1 − e^(−Δt/T)."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at = 0.0
        self.value: float | None = None

    def add(self, sample: float, at: float) -> float:
        """`at` in seconds, by a clock that never goes back."""
        if self.value is None:
            self.value = sample
        else:
            weight = 1.0 - exp(-max(0.0, at - self._at) / self._seconds)
            self.value += weight * (sample - self.value)
        self._at = at
        return self.value

    def forget(self) -> None:
        self.value = None
