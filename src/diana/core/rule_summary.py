"""What a rule says beside the numbers of its limit: for commands that find a rule in the store and not in its file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from diana.core.counter import CounterSpec
from diana.core.rule_names import counter_name

if TYPE_CHECKING:
    from diana.core.rule import OverrideMeter, Rule

ELSEWHERE = ("global", "leased")
"""Scopes of rules that count in the store."""


class RuleFacts(NamedTuple):
    name: str | None
    """None: the name under which it counts."""
    label: str | None
    """Its distinct name; None: its name is."""
    url: str
    methods: tuple[str, ...]
    cost: int
    tiers: Mapping[str, CounterSpec]
    overrides: Mapping[str, OverrideMeter]
    """By the key that is counted."""
    own: CounterSpec | None
    """The rule's limit, if it is 0: then the store knows its tiers and overrides by another meter. None: the meter that has these facts."""
    by_code: tuple[str, ...]
    """Which of `limit`, `allow` and `cost` are functions of the request."""


def add_facts(rules: Iterable[Rule]) -> None:
    """Each meter of a rule that counts in the store knows them. Not the rule itself: that would be a circle."""
    for rule in rules:
        if rule.scope in ELSEWHERE:
            own, family = rule.meter, rule.meter.family
            counted = own
            if own.denies_all and family is not None and family.zero is not own:
                counted = family.first or own
                family.zero = own if counted is own else None
            counted.facts = RuleFacts(
                None if counter_name(rule.meter) == rule.name else rule.name,
                rule.label,
                rule.url.spelling,
                tuple(sorted(rule.methods or ())),
                rule.cost,
                {} if rule.tiers is None else rule.tiers.meters,
                rule.overrides,
                None if counted is own else own,
                _by_code(rule),
            )


def _by_code(rule: Rule) -> tuple[str, ...]:
    functions = rule.functions
    if functions is None:
        return ()
    return tuple(name for name in functions._fields if getattr(functions, name) is not None)
