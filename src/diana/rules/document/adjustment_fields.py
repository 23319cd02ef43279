"""Tiers, `overrides`, `allow`, `only`, `deny` and `charge_on` in a rules file.

They are read here, and compiled to counters of tiers, overrides by key and lists of clients.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from collections.abc import Mapping as Environment
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

from diana.actors import Spelled, actor_from_spelling, key_from_written
from diana.core.actor import Identity, RuleContext
from diana.core.allow_lists import AllowList, Entry, entry_of_networks, entry_of_values
from diana.core.client_address import Proxies, network_from_spelling
from diana.core.contracts import Algorithm
from diana.core.counter import CounterGroup, CounterSpec, meter_from_limit, params_of_tiers
from diana.core.duration import SECOND_US
from diana.core.errors import ConfigError, shown
from diana.core.limit import ConcurrencyLimit, Limit, checked_limit, checked_places
from diana.core.limit_adjustments import Override, meter_with
from diana.core.rule import FilePosition, OverrideMeter, Statuses
from diana.core.url_pattern import Url
from diana.rules.document.readers import (
    ErrorCollector,
    Field,
    Read,
    fields,
    items,
    mapping,
    mistake,
    placed,
    scalar,
    text,
    whole,
)
from diana.rules.document.yaml_tree import Mapping, Node, Scalar

ELSE = "else"
SECRETS = re.compile(r"\$\{([^}]*)\}")

_STATUS = re.compile(r"[1-5](?:[0-9]{2}|xx)", re.IGNORECASE)


class ByTier(NamedTuple):
    """A number for each tier, and for all others."""

    numbers: dict[str, int]
    otherwise: int

    def of(self, tier: str | None) -> int:
        return self.otherwise if tier is None else self.numbers.get(tier, self.otherwise)


class OverrideFields(NamedTuple):
    """What a file says of a single client."""

    rpu: int
    burst: int | None
    until_us: int | None
    position: FilePosition
    word: str = "rpu"
    """How its number is called: `most` where it is so many at once."""


class RosterFields(NamedTuple):
    """An actor as it is spelled, and the values that are listed."""

    actor: str
    values: list[Field]
    position: FilePosition


def by_tier(read: Read) -> Read:
    """A number, or one for each tier: `{free: 60, pro: 600, else: 60}`."""

    def read_tiers(node: Node, path: str) -> int | ByTier:
        if not isinstance(node, Mapping):
            number: int = read(node, path)
            return number
        numbers: dict[str, int] = {}
        for key, value in node.pairs:
            name = key.text.strip()
            tier = ELSE if name.lower() == ELSE else name
            if not tier:
                raise mistake(key, path, "a tier without a name; write one such as pro")
            if tier in numbers:
                raise mistake(key, path, f"{shown(key.text)} stands here twice; keep one")
            try:
                numbers[tier] = read(value, f"{path}.{tier}")
            except ConfigError as error:
                raise placed(error, value, f"{path}.{tier}") from None
        if ELSE not in numbers:
            raise ConfigError(
                "there is no else; write else: and the number for who has no tier, or another one"
            )
        otherwise = numbers.pop(ELSE)
        if not numbers:
            raise ConfigError("there is no tier beside else; write one, or just the number")
        return ByTier(numbers, otherwise)

    return read_tiers


def override_reader(mistakes: ErrorCollector) -> Read:
    """`{acme: {rpu: 5000, until: 2026-12-01}}`: by the actor's value, as it is written."""
    readers: dict[str, Read] = {
        "rpu": whole(0),
        "most": whole(1),
        "burst": whole(0),
        "until": _until_us,
    }

    def read(node: Node, path: str) -> dict[str, OverrideFields]:
        overrides: dict[str, OverrideFields] = {}
        table = mapping(node, "overrides by the actor's value")
        if not table.pairs:
            raise ConfigError("there is no override; write one, or remove the field")
        for key, value in table.pairs:
            here = f"{path}.{shown(key.text)}"
            if key.text in overrides:
                mistakes.add(mistake(key, here, f"{shown(key.text)} stands here twice; keep one"))
                continue
            if not isinstance(value, Mapping):
                said = "write its numbers as name: value, such as {rpu: 5000}"
                mistakes.add(mistake(value, here, f"an override is a mapping; {said}"))
                continue
            found = fields(value, here, readers, mistakes)
            if len(found) < len(value.pairs):
                continue
            if ("rpu" in found) is ("most" in found):
                said = "there is no rpu; write rpu: and a number"
                if "most" in found:
                    said = "rpu says how often, most how many at once; write one of them"
                mistakes.add(mistake(value, here, said))
                continue
            word = "most" if "most" in found else "rpu"
            burst, until = found.get("burst"), found.get("until")
            overrides[key.text] = OverrideFields(
                found[word].value,
                None if burst is None else burst.value,
                None if until is None else until.value,
                FilePosition(key.line, key.column, here),
                word,
            )
        return overrides

    return read


def _until_us(node: Node, _: str) -> int:
    """A day or a moment, in UTC unless it says otherwise; in µs."""
    word = scalar(node, "a date", "write one such as 2026-12-01").text.strip()
    try:
        if len(word) == 10:
            day = date.fromisoformat(word)
            moment = datetime(day.year, day.month, day.day, tzinfo=UTC)
        else:
            moment = datetime.fromisoformat(word)
    except ValueError:
        raise ConfigError(
            f"{shown(word)} is no date; write one such as 2026-12-01, or 2026-12-01T18:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000


def roster_reader(mistakes: ErrorCollector, environment: Environment[str, str] | None) -> Read:
    """`{ip: [10.0.0.0/8], header X-Internal-Token: "${TOKEN}"}`. Without an environment, `${NAME}` is a mistake: it is not ours to read."""

    def value(node: Node, path: str) -> str:
        return SECRETS.sub(variable, text(node, path))

    def variable(found: re.Match[str]) -> str:
        if environment is None:
            raise ConfigError(
                f"a remote document cannot read {found[0]} from a node's environment; put the list into each node's own file"
            )
        if not environment.get(found[1]):
            raise ConfigError(
                f"{found[0]} is not set in the environment; set it, or write the value"
            )
        return environment[found[1]]

    def read(node: Node, path: str) -> list[RosterFields]:
        table = mapping(node, "a list of clients by actor")
        if not table.pairs:
            raise ConfigError("the list is empty; write at least one actor, or remove the field")
        found: dict[str, RosterFields] = {}
        for key, values in table.pairs:
            here = f"{path}.{shown(key.text)}"
            if key.text.lower() in found:
                mistakes.add(mistake(key, here, f"{shown(key.text)} stands here twice; keep one"))
                continue
            try:
                listed = items(value, "value")(values, here)
            except ConfigError as error:
                mistakes.add(placed(error, values, here))
                continue
            position = FilePosition(key.line, key.column, here)
            found[key.text.lower()] = RosterFields(key.text, listed, position)
        return list(found.values())

    return read


def statuses(node: Node, path: str) -> Statuses:
    """`[401, 403]`, or `5xx`."""
    numbers: set[int] = set()
    words = []
    for word in items(_status, "status")(node, path):
        spelling = word.value
        words.append(spelling)
        if spelling.endswith("xx"):
            numbers.update(range(int(spelling[0]) * 100, int(spelling[0]) * 100 + 100))
        else:
            numbers.add(int(spelling))
    if len(set(words)) < len(words):
        raise ConfigError("a status stands here twice; keep one")
    return Statuses(", ".join(words), frozenset(numbers))


def _status(node: Node, _: str) -> str:
    word = scalar(node, "a status", "write one such as 401, or 5xx")
    if not (isinstance(word, Scalar) and _STATUS.fullmatch(word.text)):
        raise ConfigError(
            f"{shown(word.text)} is no status; write one such as 401, or a class such as 5xx"
        )
    return word.text.lower()


DENY_MEMORY_US = SECOND_US

KeyFrom = Callable[[str], str]


def tier_terms(
    rpu: int | ByTier, unit_us: int, options: dict[str, Any], at_once: bool = False
) -> dict[str | None, tuple[Limit, dict[str, Any]]]:
    """A limit and options for each tier; None: for who has none of them. `at_once`: so many places, each held for at most a unit."""
    checked = checked_places if at_once else checked_limit
    split = [value for value in (rpu, *options.values()) if isinstance(value, ByTier)]
    tiers: list[str | None] = [None, *dict.fromkeys(tier for one in split for tier in one.numbers)]
    return {
        tier: (
            checked(rpu.of(tier) if isinstance(rpu, ByTier) else rpu, unit_us),
            {
                name: value.of(tier) if isinstance(value, ByTier) else value
                for name, value in options.items()
            },
        )
        for tier in tiers
    }


def meters_of_terms(
    identity: str,
    terms: dict[str | None, tuple[Limit, dict[str, Any]]],
    algorithm: Algorithm,
    when_down: str,
) -> dict[str | None, CounterSpec]:
    """One counter for all of them. What such a rule denies may be given back, or be another tier's to change: it is asked again soon."""
    limit, options = terms[None]
    id = identity + meter_from_limit("", limit, algorithm, options, when_down).id
    family = CounterGroup(deny_memory_us=DENY_MEMORY_US)
    several = tuple(terms.values())
    counted = tuple(one for one in several if one[0].rpu)
    family.tiers = counted if len(counted) > 1 else ()
    meters = {
        tier: CounterSpec(id, limit, algorithm, params, options, when_down, family)
        for (tier, (limit, options)), params in zip(
            terms.items(), params_of_tiers(algorithm, several), strict=True
        )
    }
    for meter in meters.values():
        family.include(meter)
    return meters


def key_maker(actors: list[Spelled]) -> KeyFrom | None:
    """From a value of the actor to its key; None where a key has several parts, or is the same for all."""
    if len(actors) != 1 or actors[0].actor.constant is not None:
        return None
    spelled = actors[0]

    def key(value: str) -> str:
        found = key_from_written(spelled, value)
        if found is None:
            raise ConfigError(f"{shown(value)} is no {spelled.spelling}; write one")
        return found

    return key


def compiled_overrides(
    written: dict[str, OverrideFields],
    actors: list[Spelled],
    meter: CounterSpec,
    cost: int,
    mistakes: ErrorCollector,
) -> dict[str, OverrideMeter]:
    """By the key that is counted; those with the same numbers share a meter."""
    if not written:
        return {}
    if len(actors) != 1 or actors[0].actor.constant is not None:
        raise ConfigError(
            "overrides are by the value of one actor; write actor: account, or another single one"
        )
    known: dict[tuple[int, int | None], CounterSpec] = {}
    found: dict[str, OverrideMeter] = {}
    word = "most" if isinstance(meter.limit, ConcurrencyLimit) else "rpu"
    for value, (rpu, burst, until_us, position, written_as) in written.items():
        key = key_from_written(actors[0], value)
        try:
            if written_as != word:
                raise ConfigError(
                    f"the rule says {meter.limit}; write {word} instead of {written_as}"
                )
            if key is None:
                raise ConfigError(f"{shown(value)} is no {actors[0].spelling}; write one")
            if key in found:
                raise ConfigError(f"{shown(value)} stands here twice; keep one")
            other = known.get((rpu, burst))
            if other is None:
                other = known[rpu, burst] = meter_with(meter, Override(rpu, burst))
            if cost > other.params.limit and not other.denies_all:
                raise ConfigError(
                    f"the rule's cost can never pass: the most is {other.params.limit}; write more"
                )
            found[key] = OverrideMeter(other, until_us)
        except ConfigError as error:
            mistakes.add(placed(error, position, position.path))
    return found


class RosterCompiler:
    """`allow` and `only`."""

    def __init__(
        self, proxies: Proxies, identities: dict[str, Identity], mistakes: ErrorCollector
    ) -> None:
        self._proxies = proxies
        self._identities = identities
        self._mistakes = mistakes

    def rosters(self, url: Url, lists: list[list[RosterFields] | None]) -> tuple[AllowList, ...]:
        """The block's list and the rule's own."""
        return tuple(
            AllowList(tuple(entries))
            for listed in lists
            if listed and (entries := list(self._entries(url, listed)))
        )

    def _entries(self, url: Url, listed: list[RosterFields]) -> Iterator[Entry]:
        surroundings = RuleContext(url, self._proxies, **self._identities)
        for actor, values, position in listed:
            try:
                yield self._entry(actor, values, surroundings)
            except ConfigError as error:
                self._mistakes.add(placed(error, position, position.path))

    def _entry(self, actor: str, values: list[Field], surroundings: RuleContext) -> Entry:
        spelled = actor_from_spelling(actor, surroundings)
        if spelled.actor.constant is not None:
            raise ConfigError(f"{spelled.spelling} is everybody together; write another actor")
        if spelled.spelling == "ip":
            networks = []
            for field in values:
                try:
                    networks.append(network_from_spelling(field.value))
                except ConfigError as error:
                    raise placed(error, field.position, field.position.path) from None
            return entry_of_networks(tuple(networks), self._proxies)
        canonical = spelled.actor.canonical
        written = [field.value for field in values]
        return entry_of_values(
            spelled.spelling,
            spelled.identity,
            spelled.key_from,
            [(canonical(one) or one) if canonical else one for one in written],
            spelled.actor.reads_path,
            spelled.actor.kinds,
        )
