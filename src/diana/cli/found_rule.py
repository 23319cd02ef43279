"""A rule as a command knows it: from a rules file, or from what nodes have published in the store."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any, NamedTuple

import click

from diana.core.counter import AT_ONCE, CounterSpec, meter_from_limit, unescaped
from diana.core.duration import micros_from_spelling
from diana.core.errors import ConfigError
from diana.core.limit import Limit
from diana.core.limit_adjustments import Override, meter_with
from diana.core.policy import Policy
from diana.core.rule import Rule
from diana.core.rule_names import FIELDS, about_rule, described, telling_fields
from diana.runtime.entry_points import algorithms

ELSE = "else"
"""The tier of clients that have none of the others."""
OPTIONS = ("unit", "url", "actor", "algo", "scope")
"""Of FIELDS those that are options of the commands."""


class Terms(NamedTuple):
    """Numbers under which a client may be asked."""

    limit: str
    """As people write it."""
    most: int | None
    """The most that passes at once; None if it is not known."""
    meter: CounterSpec | None
    """None: it is known on the wire only."""
    wire: bytes | None = None
    """As the scripts take it; None: the meter says."""


class KnownRule(NamedTuple):
    name: str
    fields: Mapping[str, str]
    """By FIELDS, what tells it from other rules of its name."""
    meter: CounterSpec
    """Counts where the rule counts; if the rule is not from a file, its number is not the rule's."""
    own: Terms
    tiers: Mapping[str, Terms]
    overrides: Mapping[str, tuple[Terms, int | None]]
    """Of the rules file, by key: the numbers, and until when."""
    cost: int
    by_code: tuple[str, ...] = ()
    unlisted: int = 0
    """Overrides of the rules file that are too many to be published."""
    is_complete: bool = True
    """False: the store knows the rule's own limit only."""
    named: str | None = None
    """What clients see in place of the name under which it counts."""
    label: str | None = None
    """Its distinct name, as in metrics; None: its name is, or the store does not say."""

    @property
    def distinct_name(self) -> str:
        return self.label or self.name

    @property
    def actor(self) -> str:
        return self.fields["actor"]

    def override_of(self, key: str) -> Terms | None:
        """The rules file's, if it holds now."""
        found = self.overrides.get(key)
        if found is None:
            return None
        terms, until_us = found
        return terms if until_us is None or time.time() * 1_000_000 < until_us else None


def terms_of_meter(meter: CounterSpec) -> Terms:
    burst = meter.options.get("burst")
    limit = str(meter.limit) if burst is None else f"{meter.limit}, burst {burst}"
    return Terms(limit, meter.params.limit, meter)


def terms_of_override(rule: KnownRule, override: Override) -> Terms:
    """ConfigError if it is not for this algorithm."""
    return terms_of_meter(meter_with(rule.meter, override))


def rule_from_policy(rule: Rule) -> KnownRule:
    tiers = {} if rule.tiers is None else rule.tiers.meters
    return KnownRule(
        rule.name,
        described(rule),
        rule.meter,
        terms_of_meter(rule.meter),
        {tier: terms_of_meter(meter) for tier, meter in tiers.items()},
        {key: (terms_of_meter(one.meter), one.until_us) for key, one in rule.overrides.items()},
        rule.cost,
        label=rule.label,
    )


def rules_from_policy(policy: Policy) -> list[KnownRule]:
    return [rule_from_policy(rule) for rule in policy.rules]


def rule_from_store(
    namespace: str, wire_id: bytes, limit: bytes | None, facts: bytes | None
) -> KnownRule | None:
    """None for what is no rule's: a Limiter's, a plug-in's that is not installed here."""
    id = wire_id.decode("utf-8", "surrogatepass")
    id = id.replace("%7B", "{").replace("%7D", "}").replace("%25", "%")
    parts = id.removeprefix(f"{namespace}:").split("|")
    if len(parts) < 5 or parts[3] not in algorithms():
        return None
    name, actor, scope, code, unit, *options = map(unescaped, parts)
    given = {key: int(value) for key, _, value in (one.partition("=") for one in options)}
    said = _document(facts)
    if limit is None and (said.get("most") != 0 or unit == AT_ONCE):
        return None
    try:
        unit_us = _hold_us(limit or b"") if unit == AT_ONCE else micros_from_spelling(unit)
        # The rule's number is in `limit`; this one only has the right unit, for an override to change.
        meter = meter_from_limit("", Limit(1, unit_us), algorithms()[code], given)
    except ConfigError:
        return None
    own = CounterSpec(id, meter.limit, meter.algorithm, meter.params, given)
    fields = {
        **dict.fromkeys(FIELDS, ""), "unit": unit, "actor": actor, "algo": code, "scope": scope,
        "options": ", ".join(f"{key} {value}" for key, value in given.items()),
    }  # fmt: skip
    alone = KnownRule(
        name, fields, own, Terms(f"by {unit}", None, None, limit), {}, {}, 1, is_complete=False
    )
    try:
        return _with_facts(alone, said)
    except (ValueError, KeyError, TypeError, AttributeError):
        return (
            None if limit is None else alone
        )  # the node that published the limit said no more, or it is no node's


def _with_facts(alone: KnownRule, said: dict[str, Any]) -> KnownRule:
    """All that a node says of its rule."""
    overrides = said["overrides"]
    listed = overrides if isinstance(overrides, dict) else {}
    fields = {**alone.fields, "url": str(said["url"]), "methods": ",".join(said["methods"])}
    return alone._replace(
        fields=fields,
        own=_terms(said)._replace(wire=alone.own.wire),
        tiers={tier: _terms(one) for tier, one in said["tiers"].items()},
        overrides={key: (_terms(one), one["until_us"]) for key, one in listed.items()},
        cost=int(said["cost"]),
        by_code=tuple(said["code"]),
        unlisted=0 if isinstance(overrides, dict) else int(overrides),
        is_complete=True,
        named=_text(said.get("name")),
        label=_text(said.get("label")),
    )


def chosen_rule(
    name: str, found: Sequence[KnownRule], wanted: Mapping[str, str | None]
) -> KnownRule | None:
    """The one of this name, or with this label, that the options choose; None if there is none. UsageError lists several."""
    named = [rule for rule in found if rule.name == name]
    named = named or [rule for rule in found if rule.label == name]
    named = named or [rule for rule in found if rule.named == name]
    options = {field: value for field, value in wanted.items() if value is not None}
    chosen = [rule for rule in named if all(_is(rule, *one) for one in options.items())]
    if len(chosen) == 1:
        return chosen[0]
    if named and not chosen:
        written = " ".join(f"--{field} {value}" for field, value in options.items())
        raise click.UsageError(f"no rule {name!r} has {written}; there is\n{_listed(named)}")
    if chosen:
        raise click.UsageError(
            f"{len(chosen)} rules have the name {name!r}; write one of\n{_listed(chosen)}"
        )
    return None


def _is(rule: KnownRule, field: str, value: str) -> bool:
    if field == "unit" and value != AT_ONCE:
        try:
            return micros_from_spelling(value) == micros_from_spelling(rule.fields["unit"])
        except ConfigError:
            return False
    return rule.fields[field].lower() == value.lower()


def _listed(rules: Sequence[KnownRule]) -> str:
    """Each with its distinct name, and with the options that choose it."""
    telling = telling_fields([rule.fields for rule in rules])
    lines = []
    for rule in rules:
        written = " ".join(
            f"--{one} {quote(rule.fields[one])}" for one in telling if one in OPTIONS
        )
        options = f"{quote(rule.name)} {written}" if written else ""
        ways = [quote(rule.label) if rule.label else "", options]
        choice = ", or ".join(filter(None, ways)) or "give it a name of its own in the rules file"
        lines.append(f"  {choice}: {about_rule(rule.fields, rule.own.limit)}")
    return "\n".join(lines)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _terms(said: dict[str, Any]) -> Terms:
    wire = said["wire"]
    return Terms(
        str(said["limit"]), int(said["most"]), None, None if wire is None else wire.encode()
    )


def _document(facts: bytes | None) -> dict[str, Any]:
    """Empty for what is no JSON object."""
    try:
        said = json.loads(facts or b"")
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _hold_us(limit: bytes) -> int:
    """For how long a slot is held: the second number of such a limit."""
    numbers = json.loads(limit)[1]
    return int(numbers[1])
