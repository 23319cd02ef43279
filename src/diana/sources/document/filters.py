"""`filters:` in a rules file: a list of names, each with its options or without."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any, NamedTuple

from diana.core.address import Proxies
from diana.core.errors import ConfigError, shown
from diana.core.filter import Filter, FilterSettings, made
from diana.core.plugins import entries, plugin
from diana.core.rule import FilePosition
from diana.sources.document.reader import ErrorCollector, Field, Read, fields, mapping, placed, text
from diana.sources.document.yaml_tree import Mapping, Node, Scalar, Sequence

_WHOLE = re.compile(r"0|[1-9][0-9]{0,15}")


class NamedFilter(NamedTuple):
    """What a file says of one filter."""

    name: str
    kind: Filter
    options: dict[str, Field]
    place: FilePosition


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
    for name, kind, options, place in named:
        values = {option: field.value for option, field in options.items()}
        try:
            lines.append(made(name, kind, values, proxies, place))
        except ConfigError as error:
            at = options[error.path].place if error.path in options else place
            mistakes.add(ConfigError(error.message, line=at.line, column=at.column, path=at.path))
    return tuple(lines)


def _named(node: Node, path: str, mistakes: ErrorCollector) -> NamedFilter | None:
    """None if an option could not be read: then what is missing is no second mistake."""
    place = FilePosition(node.line, node.column, path)
    if not isinstance(node, Mapping):
        name = text(node, path)
        return NamedFilter(name.lower(), _filter_of_name(name), {}, place)
    if len(node.pairs) != 1:
        raise ConfigError(
            "a filter is one name with its options under it; write each behind a dash of its own"
        )
    key, value = node.pairs[0]
    kind = _filter_of_name(key.text)
    readers: dict[str, Read] = dict.fromkeys(kind.options, plain)
    if isinstance(value, Scalar) and not value.text.strip():
        return NamedFilter(key.text.lower(), kind, {}, place)
    if not readers:
        raise ConfigError(f"{key.text} has no options; write its name alone")
    options = mapping(value, f"options of {key.text}")
    known = fields(options, path, readers, mistakes)
    if len(known) < len(options.pairs):
        return None
    return NamedFilter(key.text.lower(), kind, known, place)


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
