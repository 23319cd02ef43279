"""What nginx counts in: `limit_req_zone` with a rate, `limit_conn_zone` without one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from diana.core.errors import shown
from diana.core.limit import LARGEST_RPU
from diana.nginx.importing.configuration import Directive
from diana.nginx.importing.keys import Cases, Variables
from diana.nginx.importing.notes import Notes, Untranslatable

_ZONE = re.compile(r"zone=([^:]+):([0-9]{1,15}[kKmM]?)")
_RATE = re.compile(r"rate=([0-9]{1,12})r/([sm])")
_UNITS = {"s": "second", "m": "minute"}
ZONE_OF = {"limit_req": "limit_req_zone", "limit_conn": "limit_conn_zone"}


@dataclass(frozen=True, eq=False)
class Zone:
    name: str
    kind: str
    """`limit_req` or `limit_conn`."""
    cases: Cases
    rpu: int
    unit: str
    directive: Directive
    why_not: str = ""
    """If it has no cases: why its key is not translated."""


Zones = dict[tuple[str, str], Zone]
"""By kind and name."""


def read_zones(http: Directive) -> Zones:
    variables = Variables(http)
    zones: Zones = {}
    for kind, name in ZONE_OF.items():
        for one in http.each(name):
            one.arguments(2, 4, f"{name} $binary_remote_addr zone=addresses:10m ...;")
            zone = _zone(one, kind, variables)
            zones[kind, zone.name] = zone
    return zones


def note_zone(zone: Zone, notes: Notes) -> None:
    """Of one that is used."""
    if zone.why_not:
        notes.add(zone.directive, f"{zone.directive.name} is not translated: {zone.why_not}")
    for remark in zone.cases.remarks:
        notes.add(zone.directive, remark)


def _zone(one: Directive, kind: str, variables: Variables) -> Zone:
    name = ""
    rate, unit = 1, "second"
    for option in one.args[1:]:
        if (named := _ZONE.fullmatch(option)) is not None:
            name = named[1]
        elif (rated := _RATE.fullmatch(option)) is not None and kind == "limit_req":
            rate, unit = int(rated[1]), _UNITS[rated[2]]
        elif option != "sync":
            raise one.mistake(
                f"{one.name} must have zone=NAME:SIZE and rate=Nr/s or rate=Nr/m (got {shown(option)})"
            )
    if not name:
        raise one.mistake(f"{one.name} must have a zone; write zone=NAME:SIZE")
    if not 1 <= rate <= LARGEST_RPU:
        raise one.mistake(f"rate must be from 1 to {LARGEST_RPU} (got {rate})")
    try:
        return Zone(name, kind, variables.cases(one.args[0]), rate, unit, one)
    except Untranslatable as why:
        return Zone(name, kind, Cases((), ()), rate, unit, one, str(why))
