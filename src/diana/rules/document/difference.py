"""What another policy would change, in words: its rules, and its `shed`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from diana.core.actor import digest
from diana.core.allow_lists import AllowList
from diana.core.counter import CounterSpec
from diana.core.duration import spelling_from_micros
from diana.core.limit import ConcurrencyLimit
from diana.core.policy import Policy
from diana.core.rule import Rule
from diana.core.shed_settings import ShedSettings

COMPARED = (
    "rpu",
    "most",
    "hold",
    "burst",
    "cost",
    "missing",
    "when_down",
    "mode",
    "status",
    "body",
    "methods",
    "except",
    "url",
    "tiers",
    "overrides",
    "allow",
    "only",
    "deny",
    "charge_on",
    "drop",
)


class FieldChange(NamedTuple):
    field: str
    before: str
    after: str


class RuleChange(NamedTuple):
    """A rule that is added (+), removed (-) or changed (~). The same counter under other numbers changes, and keeps its count."""

    sign: str
    rule: Rule
    fields: tuple[FieldChange, ...] = ()

    def __str__(self) -> str:
        if self.sign != "~":
            return f"{self.sign} {self.rule}  ({self.rule.name})"
        return f"~ {self.rule.name}: " + "; ".join(
            f"{field} {before} → {after}" for field, before, after in self.fields
        )


def difference(old: Policy | None, new: Policy) -> list[RuleChange]:
    before = {} if old is None else _by_counter(old)
    after = _by_counter(new)
    changes = [RuleChange("-", rule) for id, (rule, _) in before.items() if id not in after]
    for id, (rule, left_alone) in after.items():
        if id not in before:
            changes.append(RuleChange("+", rule))
        elif fields := tuple(_changes(*before[id], rule, left_alone)):
            changes.append(RuleChange("~", rule, fields))
    return changes


def _by_counter(policy: Policy) -> dict[str, tuple[Rule, str]]:
    """Each rule, and the urls it leaves alone. The namespace is left out: a remote document knows none."""
    exempt: dict[int, list[str]] = {}
    for url, block in policy.exempt:
        exempt.setdefault(block, []).append(url.spelling)
    namespace = f"{policy.settings.namespace}:"
    return {
        rule.meter.id.removeprefix(namespace): (
            rule,
            ", ".join(sorted(exempt.get(rule.block, ()))) or "nothing",
        )
        for rule in policy.rules
    }


def _changes(old: Rule, old_except: str, new: Rule, new_except: str) -> Iterator[FieldChange]:
    for name in COMPARED:
        before = old_except if name == "except" else _shown_field(old, name)
        after = new_except if name == "except" else _shown_field(new, name)
        if before != after:
            yield FieldChange(name, before, after)
    others = {**old.meter.options, **new.meter.options}
    for option in sorted(set(others) - {"burst"}):
        was, is_now = (_plain(rule.meter.options.get(option)) for rule in (old, new))
        if was != is_now:
            yield FieldChange(option, was, is_now)


def _shown_field(rule: Rule, name: str) -> str:
    limit = rule.meter.limit
    if name in ("rpu", "most"):
        return str(limit.rpu) if isinstance(limit, ConcurrencyLimit) is (name == "most") else "none"
    if name == "hold":
        return (
            spelling_from_micros(limit.unit_us) if isinstance(limit, ConcurrencyLimit) else "none"
        )
    if name == "burst":
        return _plain(rule.meter.options.get("burst"))
    if name == "url":
        return rule.url.spelling
    if name == "methods":
        return ", ".join(sorted(rule.methods)) if rule.methods else "all"
    if name == "tiers":
        return _tiers(rule)
    if name == "overrides":
        return _overrides(rule)
    if name in ("allow", "only", "deny"):
        return spelled_rosters(getattr(rule, name))
    if name == "charge_on":
        return "all" if rule.charge_on is None else rule.charge_on.spelling
    return _plain(getattr(rule, name))


def _tiers(rule: Rule) -> str:
    if rule.tiers is None:
        return "none"
    return ", ".join(
        f"{tier} {_numbers(meter)}" for tier, meter in sorted(rule.tiers.meters.items())
    )


def _numbers(meter: CounterSpec) -> str:
    burst = meter.options.get("burst")
    return str(meter.limit) if burst is None else f"{meter.limit} burst {burst}"


def _overrides(rule: Rule) -> str:
    """How many, and a digest: there may be thousands, and their keys say little."""
    if not rule.overrides:
        return "none"
    said = [
        f"{key} {_numbers(one.meter)} {one.until_us}" for key, one in sorted(rule.overrides.items())
    ]
    return f"{len(said)} ({digest(' '.join(said))[:8]})"


def spelled_rosters(rosters: tuple[AllowList, ...]) -> str:
    """Values that may be secret are told by a digest."""
    entries = [entry for roster in rosters for entry in roster.entries]
    return (
        ", ".join(
            f"{entry.spelling} ({', '.join(sorted(entry.values))})"
            if entry.spelling == "ip"
            else f"{entry.spelling} ({digest(' '.join(sorted(entry.values)))[:8]})"
            for entry in entries
        )
        or "none"
    )


def _plain(value: object) -> str:
    return "none" if value is None else str(value)


class ShedChange(NamedTuple):
    """A factor that is added (+), removed (-) or changed (~)."""

    sign: str
    factor: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        if self.before is None or self.after is None:
            return f"{self.sign} shed {self.factor}: {self.before or self.after}"
        return f"~ shed {self.factor}: {self.before} → {self.after}"


def shed_difference(old: Policy | None, new: Policy) -> list[ShedChange]:
    before = {} if old is None else _by_source(old)
    after = _by_source(new)
    changes = []
    for source in {**before, **after}:
        was, now = before.get(source), after.get(source)
        if was != now:
            sign = "+" if was is None else "-" if now is None else "~"
            changes.append(ShedChange(sign, source[0], was, now))
    return changes


def _by_source(policy: Policy) -> dict[tuple[str, str], str]:
    return {line.source: _shown_shedding(line) for line in policy.settings.shed}


def _shown_shedding(line: ShedSettings) -> str:
    """Options by a digest: a URL may hold a password."""
    said = ", ".join(f"{reject} % from {above}" for above, reject in line.levels)
    if line.options:
        said += f", options ({digest(line.source[1])[:8]})"
    if line.exempt:
        said += f", except {', '.join(sorted(url.spelling for url in line.exempt))}"
    return said if line.last is None else f"{said}, last {spelled_rosters((line.last,))}"
