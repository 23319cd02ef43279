"""`limit_req` and `limit_conn` as a rules file.

nginx serves a request in one location, the one that fits best; in a rules file all blocks that cover a url apply. So what a location inside
another does otherwise is an `except` of the outer one's block. A level that says nothing of a kind has what the level above it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from diana.nginx.config import Directive, Note, read_config
from diana.nginx.zones import Zone, read_zones

_INHERITED = (
    "limit_req", "limit_req_status", "limit_req_dry_run", "limit_conn", "limit_conn_status", "limit_conn_dry_run", "error_page",
)  # fmt: skip
_CODE = re.compile(r"=(\d{3})?")


class Imported(NamedTuple):
    document: dict[str, Any]
    """As a rules file has it."""
    notes: list[Note]
    """What a person has to look at."""


Level = dict[str, tuple[Directive, ...]]
"""What holds at some level, by the directives' names."""


@dataclass
class Place:
    """A location that can be told by a prefix, or all of a server."""

    url: str
    exact: bool
    level: Level
    file: str
    line: int
    other: list[Place] = field(default_factory=list)
    """Those inside it that do otherwise."""

    @property
    def limits(self) -> tuple[tuple[str, ...], ...]:
        """What makes one place do otherwise than another."""
        return tuple(one.args for name in _INHERITED for one in self.level.get(name, ()))


class _Server(NamedTuple):
    names: list[str]
    is_default: bool
    places: list[Place]


def import_nginx(path: str) -> Imported:
    http = read_config(path)
    notes: list[Note] = []
    zones = read_zones(http.block, notes)
    above = _level(http, {})
    servers = [_server(one, above, notes) for one in http.each("server")]
    if not servers:
        servers = [_Server([], True, [Place("/", False, above, http.file, http.line)])]
    writer = _Writer(zones, servers, notes)
    document: dict[str, Any] = {"limits": list(writer.blocks())}
    if any("limit_req" in place.level for server in servers for place in server.places):
        _remark_underscores(http, notes)
    return Imported(document, list(dict.fromkeys(notes)))


def _level(directive: Directive, above: Level) -> Level:
    here: Level = {name: found for name in _INHERITED if (found := tuple(directive.each(name)))}
    return {**above, **here}


def _server(server: Directive, above: Level, notes: list[Note]) -> _Server:
    names: list[str] = []
    for one in server.each("server_name"):
        for name in one.args:
            if name in ("_", '""', ""):
                continue
            if name.startswith(("~", "*", ".")) or name.endswith("*"):
                text = f"server_name {name} is no plain name; its limits are not bound to it"
                notes.append(Note(one.file, one.line, text))
                names = []
                break
            names.append(name.lower())
    default = any("default_server" in one.args for one in server.each("listen"))
    level = _level(server, above)
    places = [Place("/", False, level, server.file, server.line)]
    places += _locations(server, level, notes)
    return _Server(names, default, places)


def _locations(outer: Directive, above: Level, notes: list[Note]) -> Iterator[Place]:
    for one in outer.each("location"):
        level = _level(one, above)
        *kind, path = one.args
        if kind and kind[0] in ("~", "~*"):
            if level != above:
                text = f"location {' '.join(one.args)} is not translated: a url is a prefix by whole segments"
                notes.append(Note(one.file, one.line, text))
        elif path.startswith("@"):
            continue
        else:
            exact = kind == ["="]
            url = path.rstrip("/") or "/"
            if path != "/" and not exact and not path.endswith("/") and level != above:
                text = f"location {path} also matches {path}x in nginx; the url {url} covers whole segments only"
                notes.append(Note(one.file, one.line, text))
            yield Place(url, exact, level, one.file, one.line)
            yield from _locations(one, level, notes)


def _remark_underscores(http: Directive, notes: list[Note]) -> None:
    for level in (http, *http.each("server")):
        for one in level.each("underscores_in_headers"):
            if one.args == ("on",):
                text = "underscores_in_headers: X_Tenant and X-Tenant are one header there; here a header with an underscore is another one"
                notes.append(Note(one.file, one.line, text))


class _Writer:
    """Places as blocks of rules."""

    def __init__(self, zones: dict[str, Zone], servers: list[_Server], notes: list[Note]) -> None:
        self._zones = zones
        self._servers = servers
        self._notes = notes
        self._used: dict[str, int] = {}

    def blocks(self) -> Iterator[dict[str, Any]]:
        for number, server in enumerate(self._servers):
            whom = self._whom(number, server)
            for place in _apart(server.places):
                rules = list(self._rules(place, server))
                if rules:
                    yield {"url": place.url, **_except(place), **whom, "rules": rules}

    def _whom(self, number: int, server: _Server) -> dict[str, Any]:
        """Servers are told apart by the host they are for."""
        others = [one for one in self._servers if one is not server]
        if not others:
            return {}
        is_default = server.is_default or (
            number == 0 and not any(one.is_default for one in others)
        )
        if is_default or not server.names:
            named = sorted({name for one in others for name in one.names} - set(server.names))
            return {"allow": {"host": named}} if named else {}
        return {"only": {"host": server.names}}

    def _rules(self, place: Place, server: _Server) -> Iterator[dict[str, Any]]:
        for kind, translate in (("limit_req", _rate), ("limit_conn", _connections)):
            for one in place.level.get(kind, ()):
                try:
                    zone_name, numbers = translate(one)
                    zone = self._zones[zone_name]
                    if bool(zone.rpu) != (kind == "limit_req"):
                        raise KeyError(zone_name)
                except KeyError as unknown:
                    self._note(one, f"{kind} is not translated: there is no zone {unknown} for it")
                except (ValueError, IndexError):
                    self._note(
                        one, f"{kind} {' '.join(one.args)} is not translated: it cannot be read"
                    )
                else:
                    rate = {"unit": zone.unit, "rpu": zone.rpu} if zone.rpu else {}
                    who = self._who(zone, server, place)
                    yield {**who, **rate, **numbers, **self._answer(place, kind)}

    def _who(self, zone: Zone, server: _Server, place: Place) -> dict[str, Any]:
        """Name, actor, and what belongs to them."""
        key = zone.key
        actors = list(key.actors)
        if key.by_server and len(server.names) == 1:
            actors.append("host")
        uses = self._used[zone.name] = self._used.get(zone.name, 0) + 1
        if uses == 2:
            text = f"the zone {zone.name} is used in several places, which share one count in nginx; here each counts by itself"
            self._notes.append(Note(place.file, place.line, text))
        rule: dict[str, Any] = {
            "name": zone.name if uses == 1 else f"{zone.name} {uses}",
            "actor": (actors[0] if len(actors) == 1 else actors) if actors else "all",
        }
        if key.missing:
            rule["missing"] = key.missing
        if key.allow:
            rule["allow"] = key.allow
        return rule

    def _answer(self, place: Place, kind: str) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        for one in place.level.get(f"{kind}_dry_run", ()):
            if one.args == ("on",):
                answer["mode"] = "shadow"
        status = 503
        for one in place.level.get(f"{kind}_status", ()):
            status = int(one.args[0])
        for one in place.level.get("error_page", ()):
            *codes, page = one.args
            told = next((found for code in codes if (found := _CODE.fullmatch(code))), None)
            if str(status) in codes:
                if told is not None and told[1]:
                    status = int(told[1])
                self._note(one, f"error_page: write what {page} says as the rule's body")
        if status != 503:
            answer["status"] = status
        return answer

    def _note(self, one: Directive, text: str) -> None:
        self._notes.append(Note(one.file, one.line, text))


def _rate(one: Directive) -> tuple[str, dict[str, Any]]:
    """The zone and the rest of a `limit_req`."""
    options = dict(part.partition("=")[::2] for part in one.args)
    numbers: dict[str, Any] = {"algo": "LB", "burst": int(options.get("burst", 0))}
    if "nodelay" in options:
        numbers["nodelay"] = True
    elif "delay" in options:
        numbers["delay"] = min(int(options["delay"]), numbers["burst"])
    return options["zone"], numbers


def _connections(one: Directive) -> tuple[str, dict[str, Any]]:
    return one.args[0], {"algo": "C", "most": int(one.args[1])}


def _apart(places: list[Place]) -> list[Place]:
    """Those that do otherwise than the one around them, which is told so."""
    apart: list[Place] = []
    for place in sorted(places, key=lambda one: (one.url.count("/"), len(one.url))):
        around = [one for one in apart if one is not place and _covers(one, place.url)]
        nearest = around[-1] if around else None
        if nearest is None:
            apart.append(place)
        elif nearest.limits != place.limits and place.url != nearest.url:
            nearest.other.append(place)
            apart.append(place)
    return apart


def _covers(place: Place, url: str) -> bool:
    return not place.exact and (url + "/").startswith(place.url.rstrip("/") + "/")


def _except(place: Place) -> dict[str, Any]:
    urls = [other.url for other in place.other]
    if place.exact:
        urls.append(f"{place.url.rstrip('/')}/*")
    return {"except": urls} if urls else {}
