"""An edit of rules that count slots: those that are held stay held, under the new rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from diana.core.counter import CounterSpec
from diana.core.limit import uses_slots
from diana.core.policy import Policy
from diana.core.rule import Rule


def meters_after_edit(policy: Policy, former: Policy, now: int) -> dict[str, CounterSpec]:
    """Prepares the meters of rules that replace others on the same counters; by their ids, those of which slots may be held."""
    before: dict[str, list[CounterSpec]] = {}
    for rule in former.rules:
        if uses_slots(rule.meter.algorithm):
            before.setdefault(rule.meter.id, []).extend(_meters(rule))
    edited: dict[str, CounterSpec] = {}
    for rule in policy.rules if before else ():
        if rule.meter.id in before:
            edited[rule.meter.id] = rule.meter
            for meter in _meters(rule):
                for old in before[rule.meter.id]:
                    _prepare(meter, old, now)
    return edited


def _prepare(meter: CounterSpec, former: CounterSpec, now: int) -> None:
    algorithm: Any = meter.algorithm
    if hasattr(algorithm, "options_after_edit"):
        options = algorithm.options_after_edit(meter.options, meter.params, former.params, now)
        if options is not meter.options:
            meter.options, meter.compiled = options, None
            meter.params = algorithm.params(meter.limit, **options)


def _meters(rule: Rule) -> Iterator[CounterSpec]:
    """All under which the rule may charge a key, and by which the key is forgotten."""
    yield rule.meter
    if rule.tiers is not None:
        yield from rule.tiers.meters.values()
    for override in rule.overrides.values():
        yield override.meter
    family = rule.meter.family
    if family is not None:
        yield from (meter for meter in (family.first, family.longest) if meter is not None)
