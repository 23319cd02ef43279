"""`shed:` in a rules file: a list of factors with their levels, or `default`."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple

from diana.core.errors import ConfigError, shown
from diana.core.plugins import entries, plugin
from diana.core.roster import AllowList
from diana.core.rule import FilePosition
from diana.core.shed import Factor, Level, ShedSettings, checked_levels
from diana.core.url import url_from_spelling
from diana.sources.document.filters import plain
from diana.sources.document.plans import RosterFields
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
from diana.sources.document.values import url_pattern
from diana.sources.document.yaml_tree import Mapping, Node, Scalar, Sequence

DEFAULT = "default"
DEFAULT_FACTORS = ("cpu", "memory", "process_memory", "loop_lag")
DEFAULT_EXCEPT = ("/healthz", "/livez", "/readyz")
"""Probes that are shed take the machine away from those that wait for it."""


class ShedFields(NamedTuple):
    """What a file says of one factor."""

    name: str
    kind: Factor
    fields: dict[str, Field]
    place: FilePosition


def shed_reader(mistakes: ErrorCollector, roster: Read, url: Read) -> Read:
    """`url` reads an option of that name."""

    def read(node: Node, path: str) -> list[ShedFields]:
        if isinstance(node, Scalar) and node.text.strip().lower() == DEFAULT:
            return [
                _default(name, FilePosition(node.line, node.column, path))
                for name in DEFAULT_FACTORS
            ]
        if not isinstance(node, Sequence):
            raise ConfigError("shed is a list; write each factor behind a dash (-), or default")
        if not node.items:
            raise ConfigError("the list is empty; write at least one factor, or remove the field")
        found = []
        for number, item in enumerate(node.items):
            here = f"{path}[{number}]"
            try:
                line = _line(mapping(item, "a factor"), here, mistakes, roster, url)
                found += [line] if line is not None else []
            except ConfigError as error:
                mistakes.add(placed(error, item, here))
        return found

    return read


def compiled_shed(
    lines: list[ShedFields],
    rosters: Callable[[list[RosterFields]], AllowList | None],
    mistakes: ErrorCollector,
) -> tuple[ShedSettings, ...]:
    compiled: dict[tuple[str, str], ShedSettings] = {}
    for name, kind, written, place in lines:
        options = {option: written[option] for option in kind.options if option in written}
        try:
            opened = kind.make(**{option: field.value for option, field in options.items()})
        except ConfigError as error:
            at = options[error.path].place if error.path in options else place
            mistakes.add(ConfigError(error.message, line=at.line, column=at.column, path=at.path))
            continue
        levels = written["levels"].value if "levels" in written else kind.levels
        last = rosters(written["last"].value) if "last" in written else None
        exempt = (
            tuple(field.value for field in written["except"].value) if "except" in written else ()
        )
        values = {option: field.value for option, field in options.items()}
        line = ShedSettings(name, kind, values, tuple(levels), opened, exempt, last, place)
        first = compiled.setdefault(line.source, line)
        if first is not line:
            said = f"{name} stands here twice; keep one, with all its levels"
            mistakes.add(placed(ConfigError(said), place, place.path))
    return tuple(compiled.values())


def _default(name: str, place: FilePosition) -> ShedFields:
    exempt = [Field(url_from_spelling(url), place) for url in DEFAULT_EXCEPT]
    return ShedFields(name, _factor_of_name(name), {"except": Field(exempt, place)}, place)


def _line(
    node: Mapping, path: str, mistakes: ErrorCollector, roster: Read, url: Read
) -> ShedFields | None:
    """None if a field could not be read: then what is missing is no second mistake."""
    place = FilePosition(node.line, node.column, path)
    named = [value for key, value in node.pairs if key.text.lower() == "factor"]
    if not named:
        known = ", ".join(sorted(entries("factors")))
        raise ConfigError(f"there is no factor; write factor: and one of {known}")
    try:
        kind = _factor_of_name(text(named[0], path))
    except ConfigError as error:
        raise placed(error, named[0], f"{path}.factor") from None
    readers: dict[str, Read] = {
        "factor": text,
        "levels": _levels_of(kind),
        "except": items(url_pattern, "url"),
        "last": roster,
        **{option: url if option == "url" else plain for option in kind.options},
    }
    found = fields(node, path, readers, mistakes)
    if len(found) < len(node.pairs):
        return None
    name = found["factor"].value.lower()
    if not kind.levels and "levels" not in found:
        raise ConfigError(
            f"there are no levels, and {name} has no usual ones; write levels: [{{above: 100, reject: 10}}]"
        )
    return ShedFields(name, kind, found, place)


def _factor_of_name(name: str) -> Factor:
    known = entries("factors")
    if name.lower() not in known:
        near = get_close_matches(name.lower()[:40], known, 1)
        hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(sorted(known))}"
        raise ConfigError(f"{shown(name)} is no factor; {hint}")
    kind: Factor = plugin("factors", name)
    return kind


def _levels_of(kind: Factor) -> Read:
    def read(node: Node, path: str) -> tuple[Level, ...]:
        found = items(_level, "level")(node, path)
        try:
            return checked_levels(tuple(field.value for field in found), kind.unit)
        except ConfigError as error:
            place = found[int(error.path or 0)].place
            raise ConfigError(
                error.message, line=place.line, column=place.column, path=place.path
            ) from None

    return read


def _level(node: Node, path: str) -> Level:
    numbers: dict[str, int] = {}
    readers = {"above": whole(1), "reject": _percent}
    for key, value in mapping(node, "a level").pairs:
        name = key.text.lower()
        if name not in readers or name in numbers:
            said = "stands here twice; keep one" if name in numbers else "is no field of a level"
            raise mistake(key, path, f"{shown(key.text)} {said}; write {{above: 80, reject: 10}}")
        try:
            numbers[name] = readers[name](value, f"{path}.{name}")
        except ConfigError as error:
            raise placed(error, value, f"{path}.{name}") from None
    for name in readers:
        if name not in numbers:
            raise ConfigError(f"there is no {name} in this level; write {{above: 80, reject: 10}}")
    return Level(numbers["above"], numbers["reject"])


def _percent(node: Node, path: str) -> int:
    word = scalar(node, "a percentage", "write one from 1 to 100, such as 10").text.strip()
    if word.endswith("%"):
        raise ConfigError(f"{shown(word)}: reject is in percent; write {word[:-1].strip()}")
    number: int = whole(1, 100)(node, path)
    return number
