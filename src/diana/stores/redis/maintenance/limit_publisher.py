"""What commands such as `diana peek` find in the store of a rule, beside its limit: its cost, its tiers, its overrides.

`diana:rule:ID` is a JSON object, beside `diana:limit:ID`, which other gateways read. It lives as long as that one.
Of a rule whose limit is 0 there is this object alone, since the scripts know no such limit.
"""

from __future__ import annotations

import json
from typing import Any

from diana.core.counter import CounterSpec
from diana.core.rule_summary import RuleFacts
from diana.stores.redis.protocol.scripts import wire_limit

MOST_OVERRIDES = 1_000
"""Overrides of a rules file that are written down one by one; of more, only their number."""


def facts_text(meter: CounterSpec) -> str | None:
    """None for a limit that is no rule's."""
    facts = meter.facts
    if facts is None:
        return None
    document: dict[str, Any] = {
        **_terms(facts.own or meter),
        "url": facts.url,
        "methods": facts.methods,
        "cost": facts.cost,
        "code": facts.by_code,
        "tiers": {tier: _terms(of_tier) for tier, of_tier in facts.tiers.items()},
        "overrides": len(facts.overrides),
    }
    if facts.name is not None:
        document["name"] = facts.name
    if facts.label is not None:
        document["label"] = facts.label
    if len(facts.overrides) <= MOST_OVERRIDES:
        document["overrides"] = {
            key: {**_terms(one.meter), "until_us": one.until_us}
            for key, one in facts.overrides.items()
        }
    return json.dumps(document, separators=(",", ":"))


def facts_of_zero(meter: CounterSpec) -> RuleFacts | None:
    """Of a rule whose own limit is 0, if its other limits could be published; else None."""
    known_to_scripts = getattr(meter.algorithm, "lua", None) is not None
    return meter.facts if meter.denies_all and known_to_scripts else None


def _terms(meter: CounterSpec) -> dict[str, Any]:
    """The limit as people write it, the most that passes at once, and the limit as the scripts take it."""
    wire = wire_limit(meter)
    burst = meter.options.get("burst")
    return {
        "limit": str(meter.limit) if burst is None else f"{meter.limit}, burst {burst}",
        "most": meter.params.limit,
        "wire": None if wire is None else wire.decode(),
    }
