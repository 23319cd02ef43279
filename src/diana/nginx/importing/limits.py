"""What holds at one level: the `limit_req` and `limit_conn` lines of the nearest level that has any, and the answer to a denied request."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from diana.core.errors import shown
from diana.nginx.importing.configuration import Directive
from diana.nginx.importing.notes import Notes
from diana.nginx.importing.zones import ZONE_OF, Zone, Zones, note_zone

_INHERITED = (
    "limit_req", "limit_req_status", "limit_req_dry_run", "limit_conn", "limit_conn_status", "limit_conn_dry_run", "error_page",
)  # fmt: skip
_DEFAULT_STATUS = 503
_NUMBER = re.compile(r"[0-9]{1,9}")
_STATUS = re.compile(r"[45][0-9]{2}")
_OTHER_STATUS = re.compile(r"=([2-5][0-9]{2})?")

Level = dict[str, tuple[Directive, ...]]
"""What holds, by the directives' names."""


class Limit(NamedTuple):
    """One line that limits, as fields of a rule. Two that are equal count together, if they are of one zone."""

    zone: Zone
    numbers: tuple[tuple[str, Any], ...]
    answer: tuple[tuple[str, Any], ...]

    @property
    def is_shadow(self) -> bool:
        return ("mode", "shadow") in self.answer


def level_of(directive: Directive, above: Level) -> Level:
    here: Level = {name: found for name in _INHERITED if (found := tuple(directive.each(name)))}
    return {**above, **here}


def limits_of_level(level: Level, zones: Zones, notes: Notes) -> tuple[Limit, ...]:
    found: list[Limit] = []
    for kind, zone_name in ZONE_OF.items():
        for one in level.get(kind, ()):
            name, numbers = (_rate if kind == "limit_req" else _connections)(one)
            zone = zones.get((kind, name))
            answer = tuple(_answer(level, kind, notes).items())
            if zone is None:
                text = f"{kind} is not translated: there is no {zone_name} {shown(name)} for it"
                notes.add(one, text)
            else:
                note_zone(zone, notes)
                found.append(Limit(zone, tuple(numbers.items()), answer))
    by_kind = {limit.zone.kind: limit for limit in found}
    if len(by_kind) > 1 and not by_kind["limit_conn"].is_shadow:
        text = "nginx charges limit_req for requests that limit_conn denies; here a denied request is charged to nothing"
        notes.add(level["limit_conn"][0], text)
    return tuple(dict.fromkeys(found))


def _rate(one: Directive) -> tuple[str, dict[str, Any]]:
    """The zone, and the numbers of a leaky bucket."""
    name = ""
    burst = 0
    delay: int | None = 0
    for option in one.args:
        word, equals, value = option.partition("=")
        if word == "zone" and value:
            name = value
        elif word == "burst" and _NUMBER.fullmatch(value) and int(value):
            burst = int(value)
        elif word == "delay" and _NUMBER.fullmatch(value) and int(value):
            delay = int(value)
        elif word == "nodelay" and not equals:
            delay = None
        else:
            raise one.mistake(
                f"limit_req must have zone=NAME, burst=N, delay=N or nodelay, N from 1 to 999999999 (got {shown(option)})"
            )
    if not name:
        raise one.mistake("limit_req must have a zone; write zone=NAME")
    numbers: dict[str, Any] = {"algo": "LB", "burst": burst}
    if delay is None:
        numbers["nodelay"] = True
    elif delay:
        numbers["delay"] = min(delay, burst)
    return name, numbers


def _connections(one: Directive) -> tuple[str, dict[str, Any]]:
    name, most = one.arguments(2, 2, "limit_conn ZONE 5;")
    if not _NUMBER.fullmatch(most) or not 1 <= int(most) <= 65_535:
        raise one.mistake(f"limit_conn must have a number from 1 to 65535 (got {shown(most)})")
    return name, {"algo": "C", "most": int(most)}


def _answer(level: Level, kind: str, notes: Notes) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    for one in level.get(f"{kind}_dry_run", ()):
        (word,) = one.arguments(1, 1, f"{one.name} on;")
        if word.lower() not in ("on", "off"):
            raise one.mistake(f"{one.name} must be on or off (got {shown(word)})")
        if word.lower() == "on":
            answer["mode"] = "shadow"
    status = _DEFAULT_STATUS
    for one in level.get(f"{kind}_status", ()):
        (word,) = one.arguments(1, 1, f"{one.name} 429;")
        if not _STATUS.fullmatch(word):
            raise one.mistake(f"{one.name} must be a status from 400 to 599 (got {shown(word)})")
        status = int(word)
    for one in level.get("error_page", ()):
        *codes, page = one.arguments(2, 1_000, "error_page 503 /sorry.html;")
        if str(status) in codes:
            other = next(
                (found for code in codes if (found := _OTHER_STATUS.fullmatch(code))), None
            )
            notes.add(one, f"error_page: write what {page} says as the rule's body")
            status = int(other[1]) if other is not None and other[1] else status
    if status != _DEFAULT_STATUS:
        answer["status"] = status
    return answer
