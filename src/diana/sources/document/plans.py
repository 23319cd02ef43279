"""Plans and exceptions in a rules file: numbers by tier, overrides, `allow` and `only`, `charge_on`."""

from __future__ import annotations

import re
from collections.abc import Mapping as Environment
from datetime import UTC, date, datetime
from typing import NamedTuple

from diana.core.errors import ConfigError, shown
from diana.core.rule import FilePosition, Statuses
from diana.sources.document.reader import (
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
from diana.sources.document.yaml_tree import Mapping, Node, Scalar

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
    place: FilePosition
    word: str = "rpu"
    """How its number is called: `most` where it is so many at once."""


class RosterFields(NamedTuple):
    """An actor as it is spelled, and the values that are listed."""

    actor: str
    values: list[Field]
    place: FilePosition


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
            place = FilePosition(key.line, key.column, here)
            found[key.text.lower()] = RosterFields(key.text, listed, place)
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
