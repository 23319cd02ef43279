"""The key of a zone as actors.

A request whose key is empty is not limited. People use that to exempt some: a `map` or a `geo` gives them an empty key. So a key has cases:
the clients that a list exempts, or those that a list names, each with the actors to count them by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from diana.nginx.importing.configuration import Directive
from diana.nginx.importing.geo import table_of_geo
from diana.nginx.importing.maps import (
    entries_of_map,
    source_of_map,
    table_of_property,
    table_of_table,
)
from diana.nginx.importing.notes import Untranslatable
from diana.nginx.importing.properties import Property, property_of_variable
from diana.nginx.importing.tables import Part, Table, Variable, parts_of_text

MOST_CASES = 100
SERVER_NAME = "server_name"
_SETTERS = ("set", "auth_request_set", "perl_set", "js_set", "set_by_lua_block")

Lists = tuple[tuple[str, tuple[str, ...]], ...]
"""Values by actor, as `allow` and `only` have them."""


class Case(NamedTuple):
    """The clients that are on no list of `allow` and on that of `only`, and the text that is their key."""

    parts: tuple[Part, ...]
    allow: Lists = ()
    only: Lists = ()
    absent: tuple[str, tuple[Part, ...]] | None = None
    """An actor, and the key of those that do not have it, if it is another one."""


class Key(NamedTuple):
    """How one case is counted. Two keys that are equal count together."""

    actors: tuple[str, ...]
    """None: all together."""
    constant: tuple[str, ...]
    """What is the same for all requests, such as the server's name."""
    missing: str
    allow: Lists
    only: Lists


class Cases(NamedTuple):
    """A zone's key."""

    cases: tuple[Case, ...]
    remarks: tuple[str, ...]

    def keys(self, server_name: str) -> Iterator[Key]:
        """In a server. None for clients that are not limited."""
        for case in self.cases:
            key = _key(case, server_name)
            if key is not None:
                yield key


class Variables:
    """What `map` and `geo` define."""

    def __init__(self, http: Directive) -> None:
        self._defined: dict[str, Directive] = {}
        for one in http.each("map", "geo"):
            if not one.args or not one.args[-1].startswith("$") or not one.has_block:
                raise one.mistake(
                    f"{one.name} must name a variable and have a block; write {one.name} $variable {{ ... }}"
                )
            self._defined[one.args[-1].strip("${}").lower()] = one
        self._also_set = {
            one.args[0].strip("${}").lower()
            for one in http.within()
            if one.name in _SETTERS and one.args
        }

    def cases(self, text: str) -> Cases:
        self._remarks: dict[str, None] = {}
        cases = tuple(self._cases(Case(parts_of_text(text)), 0))
        for case in cases:
            _missing_of_case(case, _actors(case), has_constant=True)
            self._remark(_remarks(case))
        limited = [case for case in cases if case.parts]
        if len(limited) > 1:
            self._remark(
                [
                    "keys of several kinds that are equal count together in nginx; here they count apart"
                ]
            )
        return Cases(tuple(limited), tuple(self._remarks))

    def _remark(self, remarks: Iterable[str]) -> None:
        self._remarks.update(dict.fromkeys(remarks))

    def _cases(self, case: Case, depth: int) -> Iterator[Case]:
        """With each variable that is a map or a geo replaced by each of its results."""
        at = next((at for at, part in enumerate(case.parts) if self._is_defined(part)), None)
        if at is None:
            yield case
            return
        if depth > MOST_CASES:
            raise Untranslatable(f"${_name(case.parts[at])} leads back to itself")
        table = self._table(_name(case.parts[at]), ())
        self._remark(table.remarks)
        around = case.parts[:at], case.parts[at + 1 :]
        exempt = tuple(value for values in table.groups.values() for value in values)
        allow = _merged(case.allow, table.actor, exempt) if exempt else case.allow
        absent = self._absent(case, table, around)
        count = 0
        for result in (None, *table.groups):
            parts = _replaced(around, table, table.default if result is None else result)
            if result is None:
                inner = Case(parts, allow, case.only, absent)
            else:
                only = _intersected(case.only, table.actor, table.groups[result])
                inner = Case(parts, case.allow, only, case.absent)
            for found in self._cases(inner, depth + 1):
                count += 1
                if count > MOST_CASES:
                    raise Untranslatable("the key has too many cases")
                yield found

    def _absent(
        self, case: Case, table: Table, around: tuple[tuple[Part, ...], tuple[Part, ...]]
    ) -> tuple[str, tuple[Part, ...]] | None:
        if table.absent == table.default or " " not in table.actor:
            return case.absent
        if case.absent is not None:
            raise Untranslatable("the key depends on two things that a request may lack")
        return table.actor, _replaced(around, table, table.absent)

    def _is_defined(self, part: Part) -> bool:
        return isinstance(part, Variable) and part.name in self._defined

    def _table(self, name: str, asked: tuple[str, ...]) -> Table:
        if name in asked:
            raise Untranslatable(f"the map of ${name} looks at itself")
        if name in self._also_set:
            raise Untranslatable(f"${name} is also set elsewhere")
        directive = self._defined[name]
        if directive.name == "geo":
            return table_of_geo(directive)
        source = source_of_map(directive)
        entries = entries_of_map(directive)
        if self._is_defined(source):
            inner = self._table(source.name, (*asked, name))
            return table_of_table(entries, inner, lambda result: "$" not in result)
        return table_of_property(entries, property_of_variable(source))


def _name(part: Part) -> str:
    return part.name if isinstance(part, Variable) else part


def _replaced(
    around: tuple[tuple[Part, ...], tuple[Part, ...]], table: Table, result: str
) -> tuple[Part, ...]:
    inner = parts_of_text(result) if not table.is_literal else (result,) if result else ()
    return (*around[0], *inner, *around[1])


def _merged(lists: Lists, actor: str, values: tuple[str, ...]) -> Lists:
    found = dict(lists)
    found[actor] = tuple(dict.fromkeys((*found.get(actor, ()), *values)))
    return tuple(found.items())


def _intersected(lists: Lists, actor: str, values: tuple[str, ...]) -> Lists:
    if lists and (lists[0][0] != actor or set(lists[0][1]) != set(values)):
        raise Untranslatable("the key depends on two lists of clients at once")
    return ((actor, values),)


def _properties(case: Case) -> list[Property]:
    return [
        property_of_variable(part)
        for part in case.parts
        if isinstance(part, Variable) and part.name != SERVER_NAME
    ]


def _key(case: Case, server_name: str) -> Key | None:
    constant = tuple(
        server_name if isinstance(part, Variable) else part
        for part in case.parts
        if isinstance(part, str) or part.name == SERVER_NAME
    )
    constant = tuple(filter(None, constant))
    actors = _actors(case)
    if not actors and not constant:
        return None
    missing = _missing_of_case(case, actors, bool(constant))
    return Key(actors, constant, missing, case.allow, case.only)


def _actors(case: Case) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.actor for one in _properties(case)))


def _missing_of_case(case: Case, actors: tuple[str, ...], has_constant: bool) -> str:
    """A map may say by itself what counts where its own source is absent."""
    if case.absent is None:
        return _missing(actors, has_constant)
    actor, parts = case.absent
    absent = _actors(Case(parts))
    if [one for one in actors if " " in one] == [actor]:
        if not parts:
            return "skip"
        if absent == ("ip",):
            return "ip"
        if not absent and actors == (actor,):
            return "together"
    raise Untranslatable(f"the key of requests without {actor} is one that no rule has")


def _missing(actors: tuple[str, ...], has_constant: bool) -> str:
    """What an empty part of the key means in nginx: the rest is the key."""
    optional = [actor for actor in actors if " " in actor or actor == "host"]
    if not optional:
        return ""
    if "ip" in actors:
        return "ip"
    return "skip" if len(actors) == 1 and " " in actors[0] and not has_constant else "together"


def _remarks(case: Case) -> Iterator[str]:
    found = _properties(case)
    for one in found:
        yield from one.remarks
    optional = {one.actor for one in found if one.may_be_absent}
    others = {one.actor for one in found} - optional - {"ip"}
    if len(optional) > 1 or (optional and others):
        missing = "ip" if any(one.actor == "ip" for one in found) else "together"
        yield (
            f"where a part of the key is missing, nginx counts by the rest; here such requests count by missing: {missing}"
        )
    if not _is_injective(case.parts):
        yield "nginx joins the parts of the key, so that ab + c and a + bc are one; here they count apart"


def _is_injective(parts: tuple[Part, ...]) -> bool:
    """Whether different values never give one key: at most one value of any length, or an address with an end."""
    free: list[int] = []
    for at, part in enumerate(parts):
        if isinstance(part, Variable) and part.name != SERVER_NAME:
            found = property_of_variable(part)
            behind = parts[at + 1] if at + 1 < len(parts) else "\0"
            ends = isinstance(behind, str) and behind[0] not in "0123456789abcdef.:"
            if not found.is_fixed_length and not (found.actor == "ip" and ends):
                free.append(at)
    return len(free) < 2
