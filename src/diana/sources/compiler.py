"""From what a file says to rules that can be asked: defaults, actors, meters, names; and what looks suspicious."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from diana.actors import Spelled, actor_from_spelling, key_of
from diana.core.actor import Identity, Surroundings
from diana.core.address import Proxies
from diana.core.contracts import Algorithm
from diana.core.duration import micros_from_spelling, spelling_from_micros
from diana.core.errors import ConfigError
from diana.core.limit import checked_limit
from diana.core.meter import Meter, meter_from_limit
from diana.core.plugins import algorithm_from_spelling
from diana.core.policy import Answer, Policy, Settings, Warning
from diana.core.request import Request
from diana.core.rule import Body, Place, Rule
from diana.core.url import Url, url_from_spelling
from diana.sources.reader import Field, Mistakes, placed
from diana.sources.schema import Block, RuleFields, RulesFile

FIELDS_OF_EVERY_RULE = {
    "actor", "unit", "rpu", "algo", "scope", "cost", "when_down", "mode", "missing", "status", "body", "name",
}  # fmt: skip
CHOSEN_BY_CLIENTS = {"account": "header X-Account-Id", "device": "header X-Device-Id"}
"""Who is asking, if the file does not say."""


def compile_policy(file: RulesFile, mistakes: Mistakes, version: str) -> Policy:
    """The policy; whatever is wrong is in `mistakes`."""
    return _Compiler(file, mistakes).policy(version)


class _Compiler:
    def __init__(self, file: RulesFile, mistakes: Mistakes) -> None:
        self._file = file
        self._mistakes = mistakes
        self._warnings: list[Warning] = []
        self._settings = self._compiled_settings()
        self._identities = {kind: self._identity(kind) for kind in CHOSEN_BY_CLIENTS}

    def policy(self, version: str) -> Policy:
        rules: list[Rule] = []
        exempt: list[tuple[Url, int]] = []
        for number, block in enumerate(self._file.blocks):
            if "url" not in block.fields:
                continue
            url: Url = block.fields["url"].value
            exempt += [(left_alone, number) for left_alone in self._exceptions(block, url)]
            for fields in block.rules:
                rule = self._rule(number, url, block, fields)
                if rule is not None:
                    rules.append(rule)
        self._same_counter_twice(rules)
        self._warn(rules)
        asked = [rule for rule in rules if rule.mode != "off"]
        return Policy(
            asked, exempt=exempt, settings=self._settings, version=version, warnings=self._warnings
        )

    def _rule(self, number: int, url: Url, block: Block, given: RuleFields) -> Rule | None:
        value, place = self._looker(given)
        complete = True
        for needed, example in (("unit", "unit: minute"), ("rpu", "rpu: 100")):
            if needed not in given.fields and needed not in self._file.defaults:
                self._mistake(
                    f"there is no {needed}; write {needed} here, such as {example}", given.place
                )
            complete = complete and value(needed) is not None
        algorithm: Algorithm = value("algo") or algorithm_from_spelling("TB")
        options = self._options(given, algorithm)
        actors = self._actors(value("actor") or ["all"], url, place("actor"))
        if not complete or actors is None or options is None:
            return None
        methods = block.fields["methods"].value if "methods" in block.fields else None
        spelling = " + ".join(actor.spelling for actor in actors)
        scope = value("scope") or "local"
        unit_us = micros_from_spelling(value("unit"))
        name = value("name") or _default_name(url, methods, spelling, unit_us)
        meter = self._meter(name, spelling, scope, value("rpu"), unit_us, algorithm, options, place)
        cost = value("cost") or 1
        if meter is None:
            return None
        if cost > meter.params.limit:
            most = meter.params.limit
            self._mistake(
                f"cost {cost} can never pass: the most is {most}; write at most that", place("cost")
            )
        missing = self._file.settings.get("missing")
        return Rule(
            name=name,
            url=url,
            methods=frozenset(methods) if methods else None,
            actor=spelling,
            key_of=key_of(actors),
            meter=meter,
            scope=scope,
            cost=cost,
            missing=value("missing") or (missing.value if missing else "ip"),
            when_down=value("when_down") or "local",
            mode=value("mode") or "enforce",
            status=value("status"),
            body=value("body"),
            block=number,
            place=given.place,
        )

    def _looker(self, given: RuleFields) -> tuple[Any, Any]:
        """A rule's own field, else the file's default."""
        own, defaults = given.fields, self._file.defaults

        def value(name: str) -> Any:
            field = own.get(name, defaults.get(name))
            return None if field is None else field.value

        def place(name: str) -> Place:
            field = own.get(name, defaults.get(name))
            return given.place if field is None else field.place

        return value, place

    def _options(self, given: RuleFields, algorithm: Algorithm) -> dict[str, Any] | None:
        """The algorithm's own fields. A default that is foreign to it is meant for other rules."""
        options: dict[str, Any] = {}
        complete = True
        for name, field in self._file.defaults.items():
            if name in algorithm.options:
                options[name] = field.value
        for name, field in given.fields.items():
            if name in algorithm.options:
                options[name] = field.value
                complete = complete and field.value is not None
            elif name not in FIELDS_OF_EVERY_RULE and field.value is not None:
                known = ", ".join(algorithm.options) or "no fields of its own"
                said = f"{name} is foreign to {algorithm.spelling} ({algorithm.code}), which has {known}; remove it"
                self._mistake(said, field.place)
                complete = False
        return options if complete else None

    def _actors(self, spellings: list[str], url: Url, place: Place) -> list[Spelled] | None:
        surroundings = Surroundings(url, self._settings.proxies, **self._identities)
        try:
            actors = [actor_from_spelling(spelling, surroundings) for spelling in spellings]
        except ConfigError as error:
            self._mistakes.add(placed(error, place, place.path))
            return None
        spellings = [actor.spelling for actor in actors]
        if len(set(spellings)) < len(spellings):
            self._mistake("an actor stands here twice; keep one", place)
        if len(spellings) > 1 and "all" in spellings:
            self._mistake("all is everybody together; write it alone, or remove it", place)
        return sorted(actors, key=lambda actor: actor.spelling)

    def _meter(
        self,
        name: str,
        actor: str,
        scope: str,
        rpu: int,
        unit_us: int,
        algorithm: Algorithm,
        options: dict[str, Any],
        place: Any,
    ) -> Meter | None:
        identity = [self._settings.namespace, name, actor, scope]
        unambiguous = "|".join(part.replace("%", "%25").replace("|", "%7C") for part in identity)
        try:
            return meter_from_limit(unambiguous, checked_limit(rpu, unit_us), algorithm, options)
        except ConfigError as error:
            self._mistakes.add(
                placed(error, place(error.path or "rpu"), place(error.path or "rpu").path)
            )
            return None

    def _exceptions(self, block: Block, url: Url) -> Iterator[Url]:
        field = block.fields.get("except")
        for left_alone in field.value if field else ():
            if left_alone.covers(url):
                said = (
                    f"{left_alone.spelling} leaves alone all of {url.spelling}; write a longer url"
                )
                self._mistake(said, field.place if field else Place(1, 1, ""))
            elif not url.covers(left_alone):
                said = f"{left_alone.spelling} is not under {url.spelling}, so it is left alone anyway; remove it"
                self._mistake(said, field.place if field else Place(1, 1, ""))
            yield left_alone

    def _same_counter_twice(self, rules: list[Rule]) -> None:
        seen: dict[str, Rule] = {}
        for rule in rules:
            first = seen.setdefault(rule.meter.id, rule)
            if first is not rule and rule.place and first.place:
                said = (
                    f"this rule counts in the counter of the rule in line {first.place.line}: "
                    f"same name, actor, algo, scope and unit; give one of them a name, or remove it"
                )
                self._mistake(said, rule.place)

    def _compiled_settings(self) -> Settings:
        def value(name: str, default: Any) -> Any:
            field = self._file.settings.get(name)
            return default if field is None else field.value

        identity: dict[str, Field] = value("identity", {})
        networks = identity.get("trusted_proxies")
        response: dict[str, Field] = value("response", {})
        answer = Answer(
            status=response["status"].value if "status" in response else 503,
            headers=tuple(response["headers"].value) if "headers" in response else Answer().headers,
            body=response["body"].value if "body" in response else Body(),
        )
        return Settings(
            store=value("store", None),
            local_store=value("local_store", "memory://"),
            namespace=value("namespace", "diana"),
            proxies=Proxies(networks.value if networks else ()),
            answer=answer,
        )

    def _identity(self, kind: str) -> Identity:
        identity = self._file.settings.get("identity")
        field = identity.value.get(kind) if identity else None
        spelling = field.value if field else CHOSEN_BY_CLIENTS[kind]
        nowhere = Surroundings(url_from_spelling("/"), self._settings.proxies, _nobody, _nobody)
        try:
            if spelling.split()[0].lower() in ("account", "actor", "device"):
                raise ConfigError(
                    f"{spelling!r} is what is to be found here; write where, such as header X-User"
                )
            return actor_from_spelling(spelling, nowhere).identity
        except ConfigError as error:
            if field:
                self._mistakes.add(placed(error, field.place, field.place.path))
            return _nobody

    def _warn(self, rules: list[Rule]) -> None:
        configured = self._file.settings.get("identity")
        said: set[str] = set()
        for rule in rules:
            for kind, header in CHOSEN_BY_CLIENTS.items():
                own = configured is not None and kind in configured.value
                if kind in rule.actor.split(" + ") and not own and kind not in said and rule.place:
                    said.add(kind)
                    self._warning(
                        f"{kind} is read from {header}, which clients choose themselves; say in identity: {kind}: "
                        "what cannot be chosen, or let a trusted proxy set the header",
                        rule.place,
                    )
        self._warn_of_scopes()
        self._warn_of_narrow_above_broad(rules)

    def _warn_of_scopes(self) -> None:
        has_store = "store" in self._file.settings
        default = self._file.defaults.get("scope")
        for block in self._file.blocks:
            for rule in block.rules:
                scope = rule.fields.get("scope", default)
                if has_store and scope is None:
                    self._warning(
                        "a store is set but this rule has no scope, so it counts on this machine only; "
                        "write scope: local or scope: global",
                        rule.place,
                    )
                elif not has_store and scope is not None and scope.value == "global":
                    self._warning(
                        "scope is global but no store is set, so it counts on this machine only; write store: URL",
                        rule.place,
                    )
                    return

    def _warn_of_narrow_above_broad(self, rules: list[Rule]) -> None:
        """A narrow limit that a broader one of the same actor and unit keeps from ever being reached."""
        groups: dict[tuple[str, int], list[Rule]] = {}
        for rule in rules:
            groups.setdefault((rule.actor, rule.meter.limit.unit_us), []).append(rule)
        for group in groups.values():
            if len(group) > 1:
                self._warn_within(group)

    def _warn_within(self, group: list[Rule]) -> None:
        by_url: dict[tuple[str | None, ...], list[Rule]] = {}
        for rule in group:
            by_url.setdefault(rule.url.segments, []).append(rule)
        for rule in group:
            segments = rule.url.segments
            broader = [by_url.get(segments[:length], []) for length in range(len(segments))]
            for other in (some for found in broader for some in found):
                if _keeps_from_being_reached(other, rule) and rule.place and other.place:
                    self._warning(
                        f"{rule.meter.limit} is never reached: {other.url.spelling} allows the same {rule.actor} "
                        f"only {other.meter.limit} (line {other.place.line})",
                        rule.place,
                    )

    def _mistake(self, message: str, place: Place) -> None:
        self._mistakes.add(
            ConfigError(message, line=place.line, column=place.column, path=place.path)
        )

    def _warning(self, message: str, place: Place) -> None:
        self._warnings.append(Warning(message, place))


def _keeps_from_being_reached(broad: Rule, narrow: Rule) -> bool:
    """Every request that the narrow rule counts is counted by the broad one too, which allows fewer."""
    same_methods = broad.methods is None or (
        narrow.methods is not None and narrow.methods <= broad.methods
    )
    same_cost = broad.cost == narrow.cost and broad.mode == "enforce"
    return same_methods and same_cost and narrow.rpu > broad.rpu


def _nobody(_: Request) -> str | None:
    return None


def _default_name(url: Url, methods: list[str] | None, actor: str, unit_us: int) -> str:
    parts = [",".join(sorted(methods))] if methods else []
    return " ".join([*parts, url.spelling, actor, spelling_from_micros(unit_us)])
