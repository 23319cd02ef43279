"""Defects that are being fixed on other branches: what the fuzzer must not report until then. An entry goes with its fix."""

from __future__ import annotations

from diana import Verdict
from diana.core.meter import Meter
from diana.judging.charging import REFUSED_KEY


def is_shadow_without_identity(looked: Verdict) -> bool:
    """`peek` of a rule in the shadow that denies requests without an identity says that it passes."""
    return any(decision.key == REFUSED_KEY for decision in looked.decisions)


def tells_too_much_time(meter: Meter) -> bool:
    """Until when a sliding window or log has more left is told as an upper bound."""
    return meter.algorithm.code in ("SW", "SL")
