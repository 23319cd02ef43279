"""What happened, in whole numbers: for telemetry."""

from __future__ import annotations

COUNTED = {
    "decisions": "requests decided, wherever",
    "trips": "commands sent to a server for them",
    "deny_cache_hits": "denials that cost no trip",
    "degraded": "requests decided here because the store was out of reach",
    "breaker_opened": "times a server was lost",
    "breaker_closed": "times a server came back",
    "leased": "requests decided from a lease, without a trip",
    "lease_asks": "asks for permits, ahead of need",
    "lease_permits": "permits that they brought",
    "dropped": "requests that chance denied before the store was asked",
    "settled": "requests admitted here meanwhile and charged to the store afterwards",
}


class Counts:
    def __init__(self) -> None:
        self._numbers = dict.fromkeys(COUNTED, 0)

    def add(self, name: str, number: int = 1) -> None:
        self._numbers[name] += number  # not a place where another thread can come between

    def shown(self) -> dict[str, int]:
        return dict(self._numbers)
