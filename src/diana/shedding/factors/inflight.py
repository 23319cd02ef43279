"""`inflight`: requests inside this process now: let in, and not yet answered. What is too many only the application knows."""

from __future__ import annotations

from diana.core.shed_settings import Activity, Factor, Open, Sample


def _make() -> Open:
    def open(activity: Activity) -> Sample:
        return lambda: float(activity.inflight)

    return open


inflight = Factor(_make, smoothing_seconds=2.0, of_process=True, needs_activity=True)
