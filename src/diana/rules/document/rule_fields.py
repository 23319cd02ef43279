"""What may stand in a rule: the same fields for all, and the options of every algorithm."""

from __future__ import annotations

from diana.rules.document.adjustment_fields import by_tier, statuses
from diana.rules.document.readers import (
    Read,
    algorithm,
    answer_body,
    choice,
    duration,
    flag,
    items,
    natural,
    rule_name,
    scope,
    status,
    text,
    whole,
)
from diana.rules.document.spelled_limits import NAMES, SpelledLimit, or_spelled_limit
from diana.runtime.entry_points import algorithms

MISSING = ("ip", "skip", "deny", "together")


def rule_fields() -> dict[str, Read]:
    """What may stand in a rule: the same for all, and every algorithm's options."""
    known: dict[str, Read] = {
        "actor": items(text, "actor"),
        "unit": duration,
        "rpu": or_spelled_limit(by_tier(whole(0))),
        "algo": algorithm,
        "scope": scope,
        "cost": whole(1),
        "when_down": choice("local", "open", "closed"),
        "mode": choice("enforce", "shadow", "off"),
        "drop": choice("random"),
        "charge_on": statuses,
        "missing": choice(*MISSING),
        "status": status,
        "body": answer_body,
        "name": rule_name,
        "burst": by_tier(whole(0)),
        "nodelay": flag,
        "delay": whole(0),
        "max_wait": duration,
        "most": by_tier(whole(1)),
        "hold": duration,
        "retry": duration,
        "max_waiting": whole(1),
        "slices": whole(1, 1_000),
        "align": choice("epoch", "first"),
    }
    known |= {name: SpelledLimit() for name in NAMES}
    for installed in algorithms().values():
        for option in installed.options:
            known.setdefault(option, natural)
    return known
