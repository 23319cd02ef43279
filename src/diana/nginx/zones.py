"""What nginx counts in: `limit_req_zone` with a rate, `limit_conn_zone` without one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from diana.nginx.config import Directive, Note
from diana.nginx.keys import Key, Untranslatable, Variables

_ZONE = re.compile(r"zone=([^:\s]+):(\d+[kKmM]?)")
_RATE = re.compile(r"rate=(\d+)r/([sm])")
_UNITS = {"s": "second", "m": "minute"}


class Zone(NamedTuple):
    name: str
    key: Key
    rpu: int
    """0: it counts connections."""
    unit: str


def read_zones(directives: Iterable[Directive], notes: list[Note]) -> dict[str, Zone]:
    listed = list(directives)
    variables = Variables(listed)
    zones: dict[str, Zone] = {}
    for one in listed:
        if one.name in ("limit_req_zone", "limit_conn_zone"):
            try:
                zone = _zone(one, variables)
            except Untranslatable as why:
                notes.append(Note(one.file, one.line, f"{one.name} is not translated: {why}"))
                continue
            zones[zone.name] = zone
            notes += [Note(one.file, one.line, remark) for remark in zone.key.remarks]
    return zones


def _zone(one: Directive, variables: Variables) -> Zone:
    options = " ".join(one.args[1:])
    named = _ZONE.search(options)
    if named is None:
        raise Untranslatable("it has no zone=name:size")
    key = variables.key(one.args[0])
    if one.name == "limit_conn_zone":
        return Zone(named[1], key, 0, "")
    rate = _RATE.search(options)
    if rate is None or not int(rate[1]):
        raise Untranslatable("it has no rate=Nr/s or rate=Nr/m")
    return Zone(named[1], key, int(rate[1]), _UNITS[rate[2]])
