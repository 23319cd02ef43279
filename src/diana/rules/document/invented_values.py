"""A limit for each value of what clients choose limits no client: for every value that a client invents, the count begins anew.

A second rule bounds all of them if its actor is nothing that a client chooses (`ip`, `all`) and if it applies to the same requests.
"""

from __future__ import annotations

from collections.abc import Iterator

from diana.actors import actor_named
from diana.core.duration import spelling_from_micros
from diana.core.limit import ConcurrencyLimit
from diana.core.policy import Warning
from diana.core.rule import FilePosition, Rule
from diana.core.url_pattern import SegmentTree, Url
from diana.rules.document.readers import Field
from diana.rules.document.settings_fields import RulesFile


def warnings_of_invented_values(
    file: RulesFile, rules: list[Rule], exempt: list[tuple[Url, int]]
) -> Iterator[Warning]:
    """`rules` are those that are asked, `exempt` the urls that blocks leave alone."""
    enforced = [rule for rule in rules if rule.mode == "enforce"]
    chosen = [rule for rule in enforced if not rule.meter.denies_all and _invented_parts(rule)]
    if not chosen:
        return
    bounds = {_reach(rule): rule for rule in enforced if _is_bound(rule.actor)}
    tree = SegmentTree((rule.url, rule) for rule in bounds.values())
    left_alone: dict[int, list[Url]] = {}
    for url, block in exempt:
        left_alone.setdefault(block, []).append(url)
    written = _actors_as_written(file)
    for rule in chosen:
        # A segment that may be anything is looked up as a word that no url has.
        path = tuple("\0" if segment is None else segment for segment in rule.url.segments)
        beside = [
            other for other in tree.covering(path) if _applies_wherever(other, rule, left_alone)
        ]
        if not _all_methods(rule, beside) and rule.position is not None:
            field = written.get(rule.position)
            invented = [_as_written(part, field) for part in _invented_parts(rule)]
            yield Warning(_said(rule, invented), field.position if field else rule.position)


def _invented_parts(rule: Rule) -> list[str]:
    """The parts of its actor of which a client can have as many values as it likes."""
    return [
        part
        for part in rule.actor.split(" + ")
        if _is_chosen(part) and not _is_one_of_a_list(part, rule)
    ]


def _is_chosen(part: str) -> bool:
    """What path is asked for is chosen too, but the application says which ones there are."""
    actor = actor_named(part)[1]
    return actor.chosen_by_clients and not actor.reads_path


def _is_one_of_a_list(part: str, rule: Rule) -> bool:
    return any(all(entry.spelling == part for entry in roster.entries) for roster in rule.only)


def _is_bound(spelling: str) -> bool:
    actors = [actor_named(part)[1] for part in spelling.split(" + ")]
    return not any(actor.chosen_by_clients or actor.reads_path or actor.kinds for actor in actors)


def _reach(rule: Rule) -> tuple[object, ...]:
    """Rules of the same reach apply to the same requests: one of them stands for all."""
    return rule.url.segments, rule.methods, rule.block, rule.charge_on, _listed(rule)


def _listed(rule: Rule) -> tuple[tuple[tuple[str, frozenset[str]], ...], ...]:
    """Of `only`."""
    return tuple(
        tuple((entry.spelling, entry.values) for entry in roster.entries) for roster in rule.only
    )


def _applies_wherever(bound: Rule, rule: Rule, left_alone: dict[int, list[Url]]) -> bool:
    """To every request that the rule is for, if its url and its methods are."""
    if bound.only and _listed(bound) != _listed(rule):
        return False
    if bound.charge_on is not None and (
        rule.charge_on is None or not rule.charge_on.numbers <= bound.charge_on.numbers
    ):
        return False
    if bound.block == rule.block:
        return True
    own = left_alone.get(rule.block, [])
    return all(
        any(excepted.covers(url) for excepted in own)
        for url in left_alone.get(bound.block, [])
        if rule.url.covers(url) or url.covers(rule.url)
    )


def _all_methods(rule: Rule, beside: list[Rule]) -> bool:
    bounded: frozenset[str] = frozenset()
    for other in beside:
        if other.methods is None:
            return True
        bounded |= other.methods
    return rule.methods is not None and rule.methods <= bounded


def _said(rule: Rule, invented: list[str]) -> str:
    limit = rule.meter.limit
    numbers = f"unit: {spelling_from_micros(limit.unit_us)}, rpu: {10 * rule.rpu}"
    if isinstance(limit, ConcurrencyLimit):
        numbers = f"algo: C, most: {10 * rule.rpu}"
    said = (
        f"clients can invent values of {' and '.join(invented)}, and no rule limits all values of a client together; "
        f"write a rule for the same url and methods by what clients cannot choose, such as {{actor: ip, {numbers}}}"
    )
    if len(invented) == 1 and invented[0].lower().startswith("header "):
        said += f", or, if a trusted proxy sets the header, identity: {{account: {invented[0]}}} and actor: account"
    return said


def _actors_as_written(file: RulesFile) -> dict[FilePosition, Field]:
    """By a rule's own position. Of one in `defaults` none: it is written for many rules."""
    return {
        rule.position: rule.fields["actor"]
        for block in file.blocks
        for rule in block.rules
        if "actor" in rule.fields
    }


def _as_written(part: str, field: Field | None) -> str:
    """Header names as in the file: a canonical one is in small letters."""
    for item in field.value if field is not None else ():
        if item.value.lower().split() == part.lower().split():
            return " ".join(item.value.split())
    return part
