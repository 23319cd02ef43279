"""Legal, but probably not what was meant: the warnings of `diana check`."""

from __future__ import annotations

from collections.abc import Iterator

from diana.core.counter import AT_ONCE
from diana.core.limit import ConcurrencyLimit
from diana.core.policy import Warning
from diana.core.rule import Rule
from diana.core.url_pattern import SegmentTree, Url
from diana.rules.document.denied_clients import warnings_of_denied_clients
from diana.rules.document.http_methods import why_unknown
from diana.rules.document.invented_values import warnings_of_invented_values
from diana.rules.document.settings_fields import RulesFile

OF_FLEET = ("global", "leased")
CHOSEN_BY_CLIENTS = {"account": "header X-Account-Id", "device": "header X-Device-Id"}
"""Who is asking, if the file does not say."""


def warnings_of(
    file: RulesFile, rules: list[Rule], exempt: list[tuple[Url, int]], now_us: int
) -> Iterator[Warning]:
    """`rules` are those that are asked, `exempt` the urls that blocks leave alone."""
    yield from _methods_that_no_request_has(file)
    yield from _identities_that_clients_choose(file, rules)
    yield from warnings_of_invented_values(file, rules, exempt)
    yield from _required_store_that_is_missing(file)
    yield from _scopes_that_were_not_meant(file, rules)
    yield from _tiers_that_no_request_has(file, rules)
    yield from _overrides_that_are_over(rules, now_us)
    yield from warnings_of_denied_clients(rules)
    yield from _health_checks_that_are_shed(file)
    yield from _limits_that_are_never_reached(rules, exempt)


def _methods_that_no_request_has(file: RulesFile) -> Iterator[Warning]:
    for block in file.blocks:
        for method in block.value("methods") or ():
            said = why_unknown(method.value)
            if said is not None:
                yield Warning(said, method.position)


def _identities_that_clients_choose(file: RulesFile, rules: list[Rule]) -> Iterator[Warning]:
    settings = file.settings.get("identity")
    open_kinds = {
        kind: header
        for kind, header in CHOSEN_BY_CLIENTS.items()
        if settings is None or kind not in settings.value
    }
    for kind, header in open_kinds.items():
        first = next((rule for rule in rules if _depends_on(rule, kind)), None)
        if first is not None and first.position is not None:
            yield Warning(
                f"{kind} is read from {header}, which clients choose themselves; say in identity: {kind}: "
                "what cannot be chosen, or let a trusted proxy set the header",
                first.position,
            )


def _requires_missing_store(file: RulesFile) -> bool:
    required = file.settings.get("require_store")
    return required is not None and bool(required.value) and "store" not in file.settings


def _required_store_that_is_missing(file: RulesFile) -> Iterator[Warning]:
    if _requires_missing_store(file):
        yield Warning(
            "require_store is true but no store is set, so the start fails unless DIANA_STORE or store= in code names one; "
            "write store: redis://HOST:PORT",
            file.settings["require_store"].position,
        )


def _depends_on(rule: Rule, kind: str) -> bool:
    """The rule counts by this identity, or one of its lists is of its values."""
    return kind in rule.actor.split(" + ") or any(
        entry.spelling == kind
        for roster in (*rule.allow, *rule.only, *rule.deny)
        for entry in roster.entries
    )


def _scopes_that_were_not_meant(file: RulesFile, rules: list[Rule]) -> Iterator[Warning]:
    asked = {rule.position for rule in rules}
    default = file.defaults.get("scope")
    written = [
        fields for block in file.blocks for fields in block.rules if fields.position in asked
    ]
    for fields in written:
        scope = fields.fields.get("scope", default)
        if "store" in file.settings and scope is None:
            yield Warning(
                "a store is set but this rule has no scope, so it counts on this machine only; "
                "write scope: local or scope: global",
                fields.position,
            )
        elif "store" not in file.settings and scope is not None and scope.value in OF_FLEET:
            if _requires_missing_store(file):
                return
            yield Warning(
                f"scope is {scope.value} but no store is set, so it counts on this machine only; write store: URL",
                fields.position,
            )
            return
        elif scope is not None and scope.value == "divided" and not _fleet_is_known(file):
            yield Warning(
                "scope is divided but neither a store nor nodes is set, so this node takes the whole limit; write nodes: N",
                fields.position,
            )
            return


def _fleet_is_known(file: RulesFile) -> bool:
    return "store" in file.settings or "nodes" in file.settings


def _tiers_that_no_request_has(file: RulesFile, rules: list[Rule]) -> Iterator[Warning]:
    identity = file.settings.get("identity")
    first = next((rule for rule in rules if rule.tiers is not None), None)
    if first is not None and first.position and (identity is None or "tier" not in identity.value):
        yield Warning(
            "this rule has numbers by tier, and identity says no tier: all get else, unless the middleware has tier=; "
            "write identity: {tier: header X-Plan, trust_tier: true}, or another place where it is found",
            first.position,
        )


def _overrides_that_are_over(rules: list[Rule], now_us: int) -> Iterator[Warning]:
    for rule in rules:
        over = sum(
            one.until_us is not None and one.until_us <= now_us for one in rule.overrides.values()
        )
        if over and rule.position:
            yield Warning(
                f"{over} of its {len(rule.overrides)} overrides have ended; remove them",
                rule.position,
            )


def _health_checks_that_are_shed(file: RulesFile) -> Iterator[Warning]:
    shed = file.settings.get("shed")
    for line in [] if shed is None else shed.value:
        if "except" not in line.fields:
            yield Warning(
                f"{line.name} sheds health checks too, and a machine whose checks fail is taken away under load; "
                "write except: [/healthz]",
                line.position,
            )
            return


def _limits_that_are_never_reached(
    rules: list[Rule], exempt: list[tuple[Url, int]]
) -> Iterator[Warning]:
    """A broader rule of the same actor and unit counts all that a narrow one counts, and allows fewer."""
    left_alone = SegmentTree(exempt)
    groups: dict[tuple[str, str, int], list[Rule]] = {}
    for rule in rules:
        if rule.varies:
            continue  # for some requests it is another limit, or none
        limit = rule.meter.limit
        unit = AT_ONCE if isinstance(limit, ConcurrencyLimit) else str(limit.unit_us)
        groups.setdefault((rule.actor, unit, rule.cost), []).append(rule)
    for members in groups.values():
        tightest = SegmentTree((rule.url, rule) for rule in _tightest_by_url(members))
        for rule in members:
            # A segment that may be anything is looked up as a word that no url has.
            path = tuple("\0" if segment is None else segment for segment in rule.url.segments)
            exempted = left_alone.covering(path)
            for other in tightest.covering(path):
                broader = other.url.segments != rule.url.segments and other.block not in exempted
                if broader and _allows_fewer(other, rule) and rule.position and other.position:
                    yield Warning(
                        f"{rule.meter.limit} is never reached: {other.url.spelling} allows the same {rule.actor} "
                        f"only {other.meter.limit} ({other.position.spot})",
                        rule.position,
                    )
                    break


def _tightest_by_url(rules: list[Rule]) -> Iterator[Rule]:
    """Of each url and its methods, the enforced rule that allows fewest: the others are hidden behind it."""
    by_url: dict[tuple[object, ...], Rule] = {}
    for rule in rules:
        if rule.mode == "enforce":
            position = (rule.url.segments, rule.methods)
            by_url[position] = min(rule, by_url.get(position, rule), key=lambda some: some.rpu)
    yield from by_url.values()


def _allows_fewer(broad: Rule, narrow: Rule) -> bool:
    every_method = broad.methods is None or (
        narrow.methods is not None and narrow.methods <= broad.methods
    )
    return every_method and narrow.rpu > broad.rpu
