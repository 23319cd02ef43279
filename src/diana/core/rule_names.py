"""Rules of one name: what tells them apart, for metrics and for commands.

Two rules may have the same name if they count apart: by another unit, actor, algorithm or scope. Limits on routes are named by their
limit ("5/minute by ip"), and each view counts under its own name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from diana.core.counter import AT_ONCE, CounterSpec, unescaped
from diana.core.duration import spelling_from_micros
from diana.core.errors import ConfigError, shown
from diana.core.limit import ConcurrencyLimit
from diana.core.rule import Rule

FIELDS = ("unit", "url", "methods", "actor", "algo", "scope", "options")
"""By which rules of one name may be told apart, the most telling first."""


def described(rule: Rule) -> dict[str, str]:
    """A rule by FIELDS, each as it is spelled in a rules file."""
    meter = rule.meter
    return {
        "unit": unit_of_meter(meter),
        "url": rule.url.spelling,
        "methods": ",".join(sorted(rule.methods or ())),
        "actor": rule.actor,
        "algo": meter.algorithm.code,
        "scope": rule.scope,
        "options": ", ".join(
            f"{option} {getattr(meter.params, option)}" for option in meter.algorithm.identity
        ),
    }


def unit_of_meter(meter: CounterSpec) -> str:
    limit = meter.limit
    return AT_ONCE if isinstance(limit, ConcurrencyLimit) else spelling_from_micros(limit.unit_us)


def telling_fields(rules: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """The fields by which each of these differs from all others: one if one is enough."""
    differing = [field for field in FIELDS if len({rule[field] for rule in rules}) > 1]
    for field in differing:
        values = {rule[field] for rule in rules}
        if len(values) == len(rules) and ("" not in values or field == "methods"):
            return (field,)
    for last in range(2, len(differing) + 1):
        fields = tuple(differing[:last])
        if len({tuple(rule[field] for field in fields) for rule in rules}) == len(rules):
            return fields
    return tuple(differing)


def labelled(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """The same rules; those whose name says too little get a label for metrics."""
    by_name: dict[str, list[Rule]] = {}
    for rule in rules:
        by_name.setdefault(rule.name, []).append(rule)
    fields = {
        name: telling_fields(list(map(described, alike)))
        for name, alike in by_name.items()
        if len(alike) > 1
    }
    return tuple(
        replace(rule, label=_label(rule, fields.get(rule.name, ()), by_name))
        if rule.name in fields or counter_name(rule.meter) != rule.name
        else rule
        for rule in rules
    )


def rule_named(name: str, rules: Sequence[Rule]) -> Rule:
    """The rule of this name, or with this label. ConfigError if there is none, or if several rules share the name."""
    if not isinstance(name, str):
        raise ConfigError(f"rule must be a str, the name of a rule (got {shown(name)})")
    named = [rule for rule in rules if rule.name == name]
    if not named:
        named = [rule for rule in rules if rule.label == name]
    if not named:
        raise ConfigError(unknown_rule(name, [rule.distinct_name for rule in rules]))
    if len(named) > 1:
        listed = "\n".join(
            f"  {rule.label!r}: {about_rule(described(rule), str(rule.meter.limit))}"
            for rule in named
        )
        raise ConfigError(f"{len(named)} rules have the name {name!r}; write one of\n{listed}")
    return named[0]


def about_rule(fields: Mapping[str, str], limit: str) -> str:
    """What a rule is, beside its name, in a list of candidates."""
    where = f", for {fields['url']}" if fields["url"] else ""
    methods = f" ({fields['methods']})" if fields["methods"] else ""
    return f"{limit} by {fields['actor']}, {fields['algo']}, {fields['scope']}{where}{methods}"


def unknown_rule(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(map(repr, known))}"
    return f"there is no rule {name!r}; {hint}"


def counter_name(meter: CounterSpec) -> str:
    """The name under which a rule's meter counts."""
    return unescaped(meter.id.partition(":")[2].partition("|")[0])


def _label(rule: Rule, fields: tuple[str, ...], names: Collection[str]) -> str:
    name, counter = rule.name, counter_name(rule.meter)
    if counter != name:
        return f"{counter}: {name}"
    values = described(rule)
    label = f"{name} ({_joined(values, fields)})"
    return f"{name} ({_joined(values, FIELDS)})" if label in names else label


def _joined(values: Mapping[str, str], fields: tuple[str, ...]) -> str:
    return ", ".join(values[field] for field in fields if values[field]) or "all methods"
