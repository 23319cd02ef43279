"""What another policy would change, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from diana.core.policy import Policy
from diana.core.rule import Rule

COMPARED = (
    "rpu",
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
)


class FieldChange(NamedTuple):
    field: str
    before: str
    after: str


class Change(NamedTuple):
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


def difference(old: Policy | None, new: Policy) -> list[Change]:
    before = {} if old is None else _by_counter(old)
    after = _by_counter(new)
    changes = [Change("-", rule) for id, (rule, _) in before.items() if id not in after]
    for id, (rule, left_alone) in after.items():
        if id not in before:
            changes.append(Change("+", rule))
        elif fields := tuple(_changes(*before[id], rule, left_alone)):
            changes.append(Change("~", rule, fields))
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
        before = old_except if name == "except" else _shown(old, name)
        after = new_except if name == "except" else _shown(new, name)
        if before != after:
            yield FieldChange(name, before, after)
    others = {**old.meter.options, **new.meter.options}
    for option in sorted(set(others) - {"burst"}):
        was, is_now = (_plain(rule.meter.options.get(option)) for rule in (old, new))
        if was != is_now:
            yield FieldChange(option, was, is_now)


def _shown(rule: Rule, name: str) -> str:
    if name == "burst":
        return _plain(rule.meter.options.get("burst"))
    if name == "url":
        return rule.url.spelling
    if name == "methods":
        return ", ".join(sorted(rule.methods)) if rule.methods else "all"
    return _plain(getattr(rule, name))


def _plain(value: object) -> str:
    return "none" if value is None else str(value)
