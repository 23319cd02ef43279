"""Pauses between attempts: each longer than the last, up to a second, and jittered, so that a fleet does not retry in step."""

from __future__ import annotations

from random import SystemRandom

FIRST_SECONDS, LONGEST_SECONDS = 0.1, 1.0

_random = SystemRandom()
"""Not the shared generator: an application that seeds it wants to see its own numbers. And each forked child has its own."""


class Backoff:
    def __init__(self) -> None:
        self._failures = 0

    @property
    def is_retry(self) -> bool:
        return self._failures > 0

    def reset(self) -> None:
        self._failures = 0

    def next_seconds(self) -> float:
        self._failures += 1
        longest = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(self._failures, 10))
        return longest * (0.5 + _random.random() / 2)
