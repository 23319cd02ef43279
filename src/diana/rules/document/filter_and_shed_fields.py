"""`filters:` in a rules file, a list of names with or without options; and `shed:`, a list of factors with their levels, or `default`."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, NamedTuple

from diana.core.allow_lists import AllowList
from diana.core.client_address import Proxies
from diana.core.errors import ConfigError, shown
from diana.core.filter_settings import Filter, FilterSettings, made
from diana.core.rule import FilePosition
from diana.core.shed_settings import Factor, Level, ShedSettings, checked_levels
from diana.core.url_pattern import url_from_spelling
from diana.rules.document.adjustment_fields import RosterFields
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
    url_pattern,
    whole,
)
from diana.rules.document.yaml_tree import Mapping, Node, Scalar, Sequence
from diana.runtime.entry_points import entries, plugin

_WHOLE = re.compile(r"0|[1-9][0-9]{0,15}")


class NamedFilter(NamedTuple):
    """What a file says of one filter."""

    name: str
    kind: Filter
    options: dict[str, Field]
    position: FilePosition


def filter_reader(mistakes: ErrorCollector) -> Read:
    def read(node: Node, path: str) -> list[NamedFilter]:
        if not isinstance(node, Sequence):
            raise ConfigError("filters is a list; write each filter behind a dash (-)")
        if not node.items:
            raise ConfigError("the list is empty; write at least one filter, or remove the field")
        found = []
        for number, item in enumerate(node.items):
            here = f"{path}[{number}]"
            try:
                named = _named(item, here, mistakes)
                found += [named] if named is not None else []
            except ConfigError as error:
                mistakes.add(placed(error, item, here))
        return found

    return read


def compiled_filters(
    named: list[NamedFilter], proxies: Proxies, mistakes: ErrorCollector
) -> tuple[FilterSettings, ...]:
    lines = []
    for name, kind, options, position in named:
        values = {option: field.value for option, field in options.items()}
        try:
            lines.append(made(name, kind, values, proxies, position))
        except ConfigError as error:
            at = options[error.path].position if error.path in options else position
            mistakes.add(ConfigError(error.message, line=at.line, column=at.column, path=at.path))
    return tuple(lines)


def _named(node: Node, path: str, mistakes: ErrorCollector) -> NamedFilter | None:
    """None if an option could not be read: then what is missing is no second mistake."""
    position = FilePosition(node.line, node.column, path)
    if not isinstance(node, Mapping):
        name = text(node, path)
        return NamedFilter(name.lower(), _filter_of_name(name), {}, position)
    if len(node.pairs) != 1:
        raise ConfigError(
            "a filter is one name with its options under it; write each behind a dash of its own"
        )
    key, value = node.pairs[0]
    kind = _filter_of_name(key.text)
    readers: dict[str, Read] = dict.fromkeys(kind.options, plain)
    if isinstance(value, Scalar) and not value.text.strip():
        return NamedFilter(key.text.lower(), kind, {}, position)
    if not readers:
        raise ConfigError(f"{key.text} has no options; write its name alone")
    options = mapping(value, f"options of {key.text}")
    known = fields(options, path, readers, mistakes)
    if len(known) < len(options.pairs):
        return None
    return NamedFilter(key.text.lower(), kind, known, position)


def plain(node: Node, path: str) -> Any:
    """What an option says: texts, whole numbers, true or false, in lists and mappings as it is written."""
    if isinstance(node, Sequence):
        return [plain(item, f"{path}[{number}]") for number, item in enumerate(node.items)]
    if isinstance(node, Scalar):
        word = text(node, path)
        if not node.plain:
            return word
        if _WHOLE.fullmatch(word):
            return int(word)
        return word.lower() == "true" if word.lower() in ("true", "false") else word
    found: dict[str, Any] = {}
    for key, value in node.pairs:
        if key.text in found:
            raise ConfigError(f"{shown(key.text)} stands here twice; keep one")
        found[key.text] = plain(value, f"{path}.{key.text}")
    return found


def _filter_of_name(name: str) -> Filter:
    known = entries("filters")
    if name.lower() not in known:
        near = get_close_matches(name.lower()[:40], known, 1)
        hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(sorted(known))}"
        raise ConfigError(f"{shown(name)} is no filter; {hint}")
    kind: Filter = plugin("filters", name)
    return kind


DEFAULT = "default"
DEFAULT_FACTORS = ("cpu", "memory", "process_memory", "loop_lag")
DEFAULT_EXCEPT = ("/healthz", "/livez", "/readyz")
"""Probes that are shed take the machine away from those that wait for it."""


class ShedFields(NamedTuple):
    """What a file says of one factor."""

    name: str
    kind: Factor
    fields: dict[str, Field]
    position: FilePosition


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
    for name, kind, written, position in lines:
        options = {option: written[option] for option in kind.options if option in written}
        try:
            opened = kind.make(**{option: field.value for option, field in options.items()})
        except ConfigError as error:
            at = options[error.path].position if error.path in options else position
            mistakes.add(ConfigError(error.message, line=at.line, column=at.column, path=at.path))
            continue
        levels = written["levels"].value if "levels" in written else kind.levels
        last = rosters(written["last"].value) if "last" in written else None
        exempt = (
            tuple(field.value for field in written["except"].value) if "except" in written else ()
        )
        values = {option: field.value for option, field in options.items()}
        line = ShedSettings(name, kind, values, tuple(levels), opened, exempt, last, position)
        first = compiled.setdefault(line.source, line)
        if first is not line:
            said = f"{name} stands here twice; keep one, with all its levels"
            mistakes.add(placed(ConfigError(said), position, position.path))
    return tuple(compiled.values())


def _default(name: str, position: FilePosition) -> ShedFields:
    exempt = [Field(url_from_spelling(url), position) for url in DEFAULT_EXCEPT]
    return ShedFields(name, _factor_of_name(name), {"except": Field(exempt, position)}, position)


def _line(
    node: Mapping, path: str, mistakes: ErrorCollector, roster: Read, url: Read
) -> ShedFields | None:
    """None if a field could not be read: then what is missing is no second mistake."""
    position = FilePosition(node.line, node.column, path)
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
    return ShedFields(name, kind, found, position)


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
            position = found[int(error.path or 0)].position
            raise ConfigError(
                error.message, line=position.line, column=position.column, path=position.path
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
