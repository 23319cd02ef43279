"""From what a file says to rules that can be asked: defaults, actors, meters, names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from time import time_ns
from typing import Any

from diana.actors import (
    KeyOf,
    Spelled,
    actor_from_spelling,
    actor_named,
    identity_actor_named,
    key_of,
)
from diana.core.actor import CODE, KINDS, Identity, RuleContext, identity_from_code
from diana.core.allow_lists import AllowList
from diana.core.contracts import Algorithm
from diana.core.counter import AT_ONCE, CounterSpec, escaped, meter_from_limit
from diana.core.duration import micros_from_spelling, spelling_from_micros
from diana.core.errors import ConfigError, shown
from diana.core.limit import HOLD_US, Limit, uses_slots
from diana.core.limit_adjustments import Tiers
from diana.core.policy import Policy, Settings
from diana.core.request import Request
from diana.core.rule import FilePosition, OverrideMeter, Rule
from diana.core.settings import why_not_leased
from diana.core.url_pattern import Url, url_from_spelling
from diana.rules.document.adjustment_fields import (
    ELSE,
    RosterCompiler,
    RosterFields,
    compiled_overrides,
    key_maker,
    meters_of_terms,
    tier_terms,
)
from diana.rules.document.filter_and_shed_fields import compiled_shed
from diana.rules.document.merged_fields import OF_PLACES, MergedFields
from diana.rules.document.readers import ErrorCollector, Field
from diana.rules.document.settings_compiler import compiled_settings
from diana.rules.document.settings_fields import Block, RulesFile
from diana.rules.document.warnings import CHOSEN_BY_CLIENTS, warnings_of
from diana.runtime.entry_points import algorithm_from_spelling

EXAMPLES = {"unit": "unit: minute", "rpu": "rpu: 100"}
DEFAULT_HOLD = spelling_from_micros(HOLD_US)
EVERYWHERE = url_from_spelling("/")
NEEDS_RESTART = (
    "store", "local_store", "store_budget_us", "require_store", "namespace", "nodes", "weight", "lease", "rules_from",
)  # fmt: skip
"""Settings that stay as they were at the start."""


def compile_policy(
    file: RulesFile, mistakes: ErrorCollector, version: str, start: Settings | None = None
) -> Policy:
    """The policy; whatever is wrong is in `mistakes`."""
    return _Compiler(file, mistakes, start).policy(version)


class _Compiler:
    def __init__(self, file: RulesFile, mistakes: ErrorCollector, start: Settings | None) -> None:
        self._file = file
        self._mistakes = mistakes
        self._settings = compiled_settings(file, mistakes)
        if start is not None:
            # The store that is open has one namespace: counters under another name would be other counters.
            fixed = {name: getattr(start, name) for name in NEEDS_RESTART}
            self._settings = replace(self._settings, **fixed)
        self._tier = self._compiled_tier()
        self._identities = {
            kind: identity_from_code(kind, self._identity(kind)) for kind in CHOSEN_BY_CLIENTS
        }
        self._rosters = RosterCompiler(self._settings.proxies, self._identities, mistakes)
        shed = self._file.settings.get("shed")
        if shed is not None:
            lines = compiled_shed(shed.value, self._roster_for_all_urls, mistakes)
            self._settings = replace(self._settings, shed=lines)
        # Of ten thousand rules most are alike: what they share is made once, and is once in memory.
        self._known_actors: dict[tuple[str, ...], tuple[list[Spelled], KeyOf]] = {}
        self._known_meters: dict[tuple[object, ...], CounterSpec] = {}

    def policy(self, version: str) -> Policy:
        rules: list[Rule] = []
        exempt: list[tuple[Url, int]] = []
        for number, block in enumerate(self._file.blocks):
            exempt += [(left_alone, number) for left_alone in self._exceptions(block)]
            for fields in block.rules:
                rule = self._rule(number, block, MergedFields(fields, self._file.defaults))
                if rule is not None:
                    rules.append(rule)
        self._same_counter_twice(rules)
        asked = [rule for rule in rules if rule.mode != "off"]
        found = (
            () if self._mistakes.any else warnings_of(self._file, asked, exempt, time_ns() // 1_000)
        )
        warnings = sorted(found, key=lambda warning: warning.position)
        settings = self._settings
        return Policy(asked, exempt=exempt, settings=settings, version=version, warnings=warnings)

    def _rule(self, number: int, block: Block, merged: MergedFields) -> Rule | None:
        """None if something is wrong with it; then `mistakes` knows what."""
        value = merged.value
        places = uses_slots(value("algo"))
        for needed, example in ({"most": "most: 5"} if places else EXAMPLES).items():
            if not merged.has(needed):
                said = f"there is no {needed}; write {needed} here, such as {example}"
                self._mistakes.add(merged.wrong(needed, said))
        actors, key = self._actors_and_key(block, merged)
        spelling = " + ".join(actor.spelling for actor in actors or ())
        url = block.fields["url"].value if "url" in block.fields else EVERYWHERE
        methods = [method.value for method in block.value("methods") or ()]
        scope = value("scope") or "local"
        unit = AT_ONCE if places else _unit_in_words(value("unit") or "second")
        name = value("name") or _default_name(url, methods, spelling, unit)
        parts = "|".join(map(escaped, (name, spelling, scope)))
        meters = self._meters(f"{self._settings.namespace}:{parts}", merged)
        allow, only, deny = (
            self._rosters.rosters(url, [block.value(which), value(which)])
            for which in ("allow", "only", "deny")
        )
        if meters is None or key is None or actors is None or "url" not in block.fields:
            return None
        meter, tiers = meters
        kinds = [spelled.actor.kinds for spelled in actors]
        kinds += [entry.kinds for roster in (*allow, *only, *deny) for entry in roster.entries]
        kinds += [frozenset({"tier"})] if tiers is not None else []
        return Rule(
            name=name,
            url=url,
            methods=frozenset(methods) if methods else None,
            actor=spelling,
            key_of=key,
            reads_path=any(spelled.actor.reads_path for spelled in actors),
            kinds=frozenset().union(*kinds),
            key_from=key_maker(actors),
            meter=meter,
            tiers=tiers,
            overrides=self._overrides(actors, meter, merged),
            allow=allow,
            only=only,
            deny=deny,
            charge_on=value("charge_on"),
            drop=self._drop(merged, scope),
            scope=scope,
            cost=value("cost") or 1,
            missing=value("missing") or self._settings.missing,
            when_down=value("when_down") or "local",
            mode=value("mode") or "enforce",
            status=value("status"),
            body=value("body"),
            block=number,
            position=merged.position,
        )

    def _drop(self, merged: MergedFields, scope: str) -> str | None:
        drop: str | None = merged.value("drop")
        places = uses_slots(merged.value("algo"))
        if drop is None or (scope in ("global", "leased") and not places):
            return drop
        if merged.is_own("drop"):
            said = f"drop spares the store, and a rule of scope {scope} asks none; write scope: global or leased, or remove it"
            if places:
                said = "drop compares how often is asked with a rate, and so many at once is none; remove it"
            self._mistakes.add(merged.wrong("drop", said))
        return None

    def _actors_and_key(
        self, block: Block, merged: MergedFields
    ) -> tuple[list[Spelled] | None, KeyOf | None]:
        fields: list[Field] = merged.value("actor") or [Field("all", merged.position)]
        words = tuple(field.value for field in fields)
        known = self._known_actors.get(words)
        if known is not None:
            return known
        actors = self._actors(block, merged)
        if actors is None:
            return None, None
        found = actors, key_of(actors)
        if len(words) == 1 and all(spelled.actor.same_everywhere for spelled in actors):
            self._known_actors[words] = found
        return found

    def _actors(self, block: Block, merged: MergedFields) -> list[Spelled] | None:
        url = block.fields["url"].value if "url" in block.fields else None
        surroundings = RuleContext(url or EVERYWHERE, self._settings.proxies, **self._identities)
        fields: list[Field] = merged.value("actor") or [Field("all", merged.position)]
        actors: list[Spelled] = []
        for field in fields:
            try:
                if url is None and actor_named(field.value)[1].needs_url:
                    continue
                actors.append(actor_from_spelling(field.value, surroundings))
            except ConfigError as error:
                self._mistakes.add(merged.wrong("actor", error.message, field.position))
                return None
        spellings = [actor.spelling for actor in actors]
        if len(set(spellings)) < len(spellings):
            self._mistakes.add(merged.wrong("actor", "an actor stands here twice; keep one"))
        constant = [spelled.spelling for spelled in actors if spelled.actor.constant is not None]
        if len(actors) > 1 and constant:
            said = f"{constant[0]} is everybody together; write it alone, or remove it"
            self._mistakes.add(merged.wrong("actor", said))
        return sorted(actors, key=lambda actor: actor.spelling)

    def _meters(
        self, identity: str, merged: MergedFields
    ) -> tuple[CounterSpec, Tiers | None] | None:
        """The rule's own, and those of its tiers."""
        algorithm: Algorithm = merged.value("algo") or algorithm_from_spelling("TB")
        places = uses_slots(algorithm)
        for name, field in merged.foreign(algorithm).items():
            if field.value is not None:
                names = (*OF_PLACES, *algorithm.options) if places else algorithm.options
                known = ", ".join(names) or "no fields of its own"
                said = f"{name} is foreign to {algorithm.spelling} ({algorithm.code}), which has {known}; remove it"
                self._mistakes.add(merged.wrong(name, said))
        why_not = why_not_leased(algorithm) if merged.value("scope") == "leased" else None
        if why_not is not None:
            said = f"{algorithm.spelling} ({algorithm.code}) cannot be leased: {why_not}; write scope: global, or algo: TB, W or SW"
            self._mistakes.add(merged.wrong("scope", said))
        options = {name: field.value for name, field in merged.options(algorithm).items()}
        unit, rpu = merged.value("unit"), merged.value("rpu")
        if places:
            unit, rpu = merged.value("hold"), merged.value("most")
            if not merged.has("hold"):
                unit = DEFAULT_HOLD
        if unit is None or rpu is None or None in options.values():
            return None
        when_down = merged.value("when_down") or "local"
        by_outcome = merged.value("charge_on") is not None
        if by_outcome and getattr(algorithm, "delays", False):
            said = f"{algorithm.spelling} ({algorithm.code}) releases at a steady rate, and what is released cannot be given back; "
            self._mistakes.add(merged.wrong("charge_on", f"{said}write another algo, or remove it"))
        if by_outcome and places:
            said = f"{algorithm.spelling} ({algorithm.code}) holds a place until the answer is sent, whatever its status; remove it"
            self._mistakes.add(merged.wrong("charge_on", said))
        try:
            terms = tier_terms(rpu, micros_from_spelling(unit), options, places)
            if len(terms) == 1 and not by_outcome:
                limit, own_options = terms[None]
                meter = self._like_others(identity, limit, algorithm, own_options, when_down)
                return self._if_cost_passes(merged, {None: meter}), None
            meters = meters_of_terms(identity, terms, algorithm, when_down)
        except ConfigError as error:
            number = "most" if places else "rpu"
            about = error.path if error.path is not None and merged.has(error.path) else number
            self._mistakes.add(merged.wrong(about, error.message))
            return None
        own = self._if_cost_passes(merged, meters)
        tiers = {tier: meter for tier, meter in meters.items() if tier is not None}
        return own, Tiers(self._tier, tiers) if tiers else None

    def _if_cost_passes(
        self, merged: MergedFields, meters: dict[str | None, CounterSpec]
    ) -> CounterSpec:
        """The rule's own; a cost that one of the tiers can never pass is a mistake."""
        cost = merged.value("cost") or 1
        for tier, meter in meters.items():
            most = meter.params.limit
            if cost > most and not meter.denies_all:
                of_tier = "" if len(meters) == 1 else f" of the tier {shown(tier or ELSE)}"
                said = (
                    f"cost {cost} can never pass: the most{of_tier} is {most}; write at most that"
                )
                self._mistakes.add(merged.wrong("cost", said))
        return meters[None]

    def _roster_for_all_urls(self, listed: list[RosterFields]) -> AllowList | None:
        return next(iter(self._rosters.rosters(EVERYWHERE, [listed])), None)

    def _overrides(
        self, actors: list[Spelled], meter: CounterSpec, merged: MergedFields
    ) -> dict[str, OverrideMeter]:
        written, cost = merged.value("overrides") or {}, merged.value("cost") or 1
        try:
            return compiled_overrides(written, actors, meter, cost, self._mistakes)
        except ConfigError as error:
            self._mistakes.add(merged.wrong("overrides", error.message))
            return {}

    def _like_others(
        self,
        identity: str,
        limit: Limit,
        algorithm: Algorithm,
        options: dict[str, Any],
        when_down: str,
    ) -> CounterSpec:
        """A meter under its own name, with all else of one that is just like it."""
        kind = (algorithm.code, limit, when_down, *options.items())
        like = self._known_meters.get(kind)
        if like is None:
            like = self._known_meters[kind] = meter_from_limit(
                "", limit, algorithm, options, when_down
            )
        return CounterSpec(
            identity + like.id, like.limit, algorithm, like.params, like.options, when_down
        )

    def _exceptions(self, block: Block) -> Iterator[Url]:
        if "url" not in block.fields or "except" not in block.fields:
            return
        url: Url = block.fields["url"].value
        for left_alone, position in block.fields["except"].value:
            if left_alone.covers(url):
                said = (
                    f"{left_alone.spelling} leaves alone all of {url.spelling}; write a longer url"
                )
                self._mistake(said, position)
            elif not url.covers(left_alone):
                said = f"{left_alone.spelling} is not under {url.spelling}, so it is left alone anyway; remove it"
                self._mistake(said, position)
            yield left_alone

    def _same_counter_twice(self, rules: list[Rule]) -> None:
        seen: dict[str, Rule] = {}
        for rule in rules:
            first = seen.setdefault(rule.meter.id, rule)
            if first is not rule and rule.position and first.position:
                said = (
                    f"this rule counts in the counter of the rule in {first.position.spot}: "
                    f"same name, actor, algo, scope and unit; give one of them another name, or remove it"
                )
                self._mistake(said, rule.position)

    def _compiled_tier(self) -> Identity:
        """Where a request's tier is found; code that knows it wins."""
        identity = self._file.settings.get("identity")
        field = identity.value.get("tier") if identity else None
        if identity is None or field is None:
            return identity_from_code("tier", _no_identity)
        trusted = identity.value.get("trust_tier")
        if field.value == CODE and trusted is not None:
            self._mistake(
                "trust_tier is for a tier that a request says itself, and code says this one; remove it",
                trusted.position,
            )
        try:
            word, actor = identity_actor_named(field.value)
        except ConfigError:
            pass  # said below
        else:
            if actor.chosen_by_clients and not (trusted and trusted.value):
                self._mistake(
                    f"clients choose their {word} themselves, and so their tier; write trust_tier: true beside it if something in "
                    "front of Diana sets it, and takes away what clients send",
                    field.position,
                )
        return identity_from_code("tier", self._identity("tier"))

    def _identity(self, kind: str) -> Identity:
        identity = self._file.settings.get("identity")
        field = identity.value.get(kind) if identity else None
        spelling = field.value if field else CHOSEN_BY_CLIENTS[kind]
        if spelling == CODE:
            return _no_identity  # if the code does not say
        nowhere = RuleContext(EVERYWHERE, self._settings.proxies, _no_identity, _no_identity)
        try:
            word, actor = identity_actor_named(spelling)
            if word in KINDS:
                raise ConfigError(
                    f"{spelling!r} is what is to be found here; write where, such as header X-User"
                )
            if actor.constant is not None:
                raise ConfigError(f"{word} is everybody together; write what tells clients apart")
            if actor.needs_url:
                raise ConfigError(
                    f"{word} belongs to one url; write what holds for all, such as header X-User"
                )
            return actor_from_spelling(spelling, nowhere).identity
        except ConfigError as error:
            if field:
                self._mistake(error.message, field.position)
            return _no_identity

    def _mistake(self, message: str, position: FilePosition) -> None:
        self._mistakes.add(
            ConfigError(message, line=position.line, column=position.column, path=position.path)
        )


def _no_identity(_: Request) -> str | None:
    return None


def _default_name(url: Url, methods: list[str] | None, actor: str, unit: str) -> str:
    parts = [",".join(sorted(methods))] if methods else []
    return " ".join([*parts, url.spelling, actor, unit])


def _unit_in_words(unit: str) -> str:
    return spelling_from_micros(micros_from_spelling(unit))
