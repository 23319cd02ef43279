"""`map`: what nginx makes of the value of a variable, which it compares in any case."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from diana.core.errors import shown
from diana.nginx.importing.configuration import Directive
from diana.nginx.importing.notes import Untranslatable
from diana.nginx.importing.properties import Property
from diana.nginx.importing.tables import Table, Variable, parts_of_text

_WORDS = {"hostnames": 0, "volatile": 0, "default": 1}
"""Those that are no values, and how many parameters they have."""


class Entries(NamedTuple):
    name: str
    exact: dict[str, str]
    """By the value as it is written."""
    default: str
    remarks: tuple[str, ...]

    def result(self, value: str) -> str:
        lower = value.lower()
        for own, result in self.exact.items():
            if own.lower() == lower:
                return result
        return self.default


def entries_of_map(mapping: Directive) -> Entries:
    name = mapping.args[-1]
    exact: dict[str, str] = {}
    default = ""
    patterns: list[str] = []
    has_hostnames = any(one.name == "hostnames" for one in mapping.block)
    for one in mapping.block:
        count = _WORDS.get(one.name, 1)
        one.arguments(count, count, "a value and a result, such as gold 1;")
        if one.name == "default":
            default = one.args[0]
        elif one.name.startswith("~") or (has_hostnames and _is_wildcard(one.name)):
            patterns.append(one.args[0])
        elif one.name not in _WORDS:
            exact[one.name.removeprefix("\\")] = one.args[0]
    if any(patterns):
        raise Untranslatable(f"the map of {name} has values that are no plain texts")
    remarks = [f"clients that a pattern in the map of {name} exempts are limited here"]
    return Entries(name, exact, default, tuple(remarks if patterns else ()))


def source_of_map(mapping: Directive) -> Variable:
    source, name = mapping.arguments(2, 2, "map $http_x_plan $key { default $remote_addr; }")
    parts = parts_of_text(source)
    if len(parts) != 1 or not isinstance(parts[0], Variable):
        raise Untranslatable(f"the map of {name} looks at {shown(source)}, not at one variable")
    return parts[0]


def table_of_property(entries: Entries, source: Property) -> Table:
    """Of a map that looks at the request itself."""
    groups: dict[str, list[str]] = {}
    remarks = [*entries.remarks, *source.remarks]
    for value, result in entries.exact.items():
        if not value or result == entries.default:
            continue
        listed = source.listed(value)
        if listed is None:
            continue
        groups.setdefault(result, []).append(listed)
        if listed.lower() != listed.upper() and source.has_case:
            remarks.append(f"the map of {entries.name} compares in any case; a list does not")
    values = {result: tuple(dict.fromkeys(found)) for result, found in groups.items()}
    return Table(
        source.actor, values, entries.default, entries.result(""), tuple(dict.fromkeys(remarks))
    )


def table_of_table(entries: Entries, inner: Table, is_plain: Callable[[str], bool]) -> Table:
    """Of a map that looks at what another map, or a geo, has made."""
    for result in (*inner.groups, inner.default, inner.absent):
        if not inner.is_literal and not is_plain(result):
            raise Untranslatable(f"the map of {entries.name} looks at a variable that holds others")
    default = entries.result(inner.default)
    groups: dict[str, tuple[str, ...]] = {}
    for result, values in inner.groups.items():
        own = entries.result(result)
        if own != default:
            groups[own] = groups.get(own, ()) + values
    remarks = (*inner.remarks, *entries.remarks)
    return Table(inner.actor, groups, default, entries.result(inner.absent), remarks)


def _is_wildcard(name: str) -> bool:
    return name.startswith(("*.", ".")) or name.endswith(".*")
