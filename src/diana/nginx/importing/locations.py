"""In which location nginx serves a path.

The exact location wins, then the longest prefix, in which nested locations are looked for likewise. Then regular expressions are tried,
those nested in the prefix first, unless the prefix is written with `^~`. Which paths an expression matches is not known here: it may match
any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from diana.nginx.importing.configuration import Directive
from diana.nginx.importing.limits import Level, Limit, level_of, limits_of_level
from diana.nginx.importing.notes import Notes
from diana.nginx.importing.zones import Zones

_MODIFIERS = ("=", "^~", "~*", "~")
_PASSES = ("proxy_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "memcached_pass", "grpc_pass")
"""With one of them, a location /x/ answers /x by a redirect."""


@dataclass(eq=False)
class Location:
    """Or a server, as what is around all its locations."""

    directive: Directive
    modifier: str
    """`=`, `^~`, `~`, `~*`, or nothing for a prefix."""
    path: str
    limits: tuple[Limit, ...]
    """None where a request is answered before it is counted."""
    is_internal: bool = False
    """No path that is sent leads to it."""
    inner: list[Location] = field(default_factory=list)

    def __str__(self) -> str:
        return " ".join(filter(None, ("location", self.modifier, self.path)))

    @property
    def is_pattern(self) -> bool:
        return self.modifier.startswith("~")

    @property
    def is_named(self) -> bool:
        return self.path.startswith("@") and not self.modifier

    def within(self) -> Iterator[Location]:
        for one in self.inner:
            yield one
            yield from one.within()

    @cached_property
    def index(self) -> Index:
        """Of those that stand directly in it, once they are read."""
        statics = [one for one in self.inner if not one.is_pattern and not one.is_named]
        prefixes = {one.path: one for one in statics if one.modifier != "="}
        passing = {one.path for one in statics if any(True for _ in one.directive.each(*_PASSES))}
        return Index(
            {one.path: one for one in statics if one.modifier == "="},
            prefixes,
            sorted({len(path) for path in prefixes}, reverse=True),
            {path[:-1] for path in passing if path.endswith("/")} - prefixes.keys(),
            [one for one in self.inner if one.is_pattern],
        )


class Index(NamedTuple):
    exact: dict[str, Location]
    prefixes: dict[str, Location]
    lengths: list[int]
    """Of the prefixes, the longest first."""
    redirected: set[str]
    """`/x`, to `/x/`."""
    patterns: list[Location]

    def longest(self, path: str) -> Location | None:
        found = (self.prefixes.get(path[:length]) for length in self.lengths if length <= len(path))
        return next((one for one in found if one is not None), None)


def read_locations(outer: Directive, above: Level, zones: Zones, notes: Notes) -> Location:
    """Of a server, and what is in it."""
    level = level_of(outer, above)
    answers = any(True for _ in outer.each("return"))
    limits = () if answers else limits_of_level(level, zones, notes)
    location = Location(outer, "", "", limits)
    if not answers:
        location.inner += _inner(outer, level, zones, notes)
    return location


def _inner(
    outer: Directive, above: Level, zones: Zones, notes: Notes, within_internal: bool = False
) -> Iterator[Location]:
    for one in outer.each("location"):
        modifier, path = _modifier_and_path(one)
        level = level_of(one, above)
        is_internal = within_internal or any(True for _ in one.each("internal"))
        answers = is_internal or any(True for _ in one.each("return"))
        limits = () if answers else limits_of_level(level, zones, notes)
        location = Location(one, modifier, path, limits, is_internal)
        location.inner += _inner(one, level, zones, notes, is_internal)
        yield location


def _modifier_and_path(one: Directive) -> tuple[str, str]:
    args = one.arguments(1, 2, "location /path { }")
    if not one.has_block:
        raise one.mistake("location must have a block; write location /path { }")
    if len(args) == 2:
        if args[0] not in _MODIFIERS:
            raise one.mistake(f"location must have one of {' '.join(_MODIFIERS)} before its path")
        return args[0], args[1]
    for modifier in _MODIFIERS:
        if args[0].startswith(modifier):
            return modifier, args[0].removeprefix(modifier)
    return "", args[0]


def serving(outer: Location, path: str) -> tuple[Location, list[Location]]:
    """Where a path is served if no regular expression matches it, and where if one does."""
    found, patterns, _ = _serving(outer, path)
    return found, patterns


def _serving(outer: Location, path: str) -> tuple[Location, list[Location], bool]:
    """Whether it is final, as well: then no expression is tried."""
    index = outer.index
    if path in index.exact:
        return index.exact[path], [], True
    if path in index.redirected:
        return Location(outer.directive, "", "", ()), [], True
    longest = index.longest(path)
    found, patterns = outer, list[Location]()
    if longest is not None:
        found, patterns, is_final = _serving(longest, path)
        if is_final:
            return found, patterns, True
    if longest is None or longest.modifier != "^~":
        for one in index.patterns:
            inner, others, _ = _serving(one, path)
            patterns = [*patterns, inner, *others]
    return found, patterns, False
