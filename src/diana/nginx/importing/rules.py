"""Charges as blocks of rules."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any, NamedTuple

from diana.nginx.importing.charges import Charge, Charges
from diana.nginx.importing.notes import Notes
from diana.nginx.importing.regions import Cell, Region, Tree, Urls
from diana.nginx.importing.servers import OTHERS, Host

LONGEST_NAME = 90

Block = dict[str, Any]
Hosts = frozenset[str]


class Use(NamedTuple):
    """A rule of one block: what is charged on which paths of which hosts."""

    charge: Charge
    urls: Urls
    region: Region
    hosts: Hosts


def blocks_of_charges(
    charged: dict[str, dict[Cell, Charges]], tree: Tree, hosts: list[Host], notes: Notes
) -> list[Block]:
    """`charged` is by host."""
    uses = list(_uses(charged, tree))
    _note_shared_zones(uses, notes)
    names = _Names()
    blocks: dict[tuple[Any, ...], Block] = {}
    for use in sorted(uses, key=lambda use: use.urls.url.count("/") if use.urls.url != "/" else 0):
        urls = use.urls
        key = urls.url, urls.excepted, use.hosts
        block = blocks.get(key)
        if block is None:
            excepted = {"except": list(urls.excepted)} if urls.excepted else {}
            block = {"url": urls.url, **excepted, **_by_host(use.hosts, hosts), "rules": []}
            blocks[key] = block
        block["rules"].append(_rule(use, names))
    return list(blocks.values())


def _uses(charged: dict[str, dict[Cell, Charges]], tree: Tree) -> Iterator[Use]:
    """Each charge with as few urls and hosts as possible."""
    regions: dict[Charge, dict[str, set[Cell]]] = {}
    for host, by_cell in charged.items():
        for cell, charges in by_cell.items():
            for charge in charges:
                regions.setdefault(charge, {}).setdefault(host, set()).add(cell)
    for charge, by_host in regions.items():
        alike: dict[Region, list[str]] = {}
        for host, cells in by_host.items():
            alike.setdefault(frozenset(cells), []).append(host)
        for region, names in alike.items():
            for urls in tree.urls(region, may_list=not charge.key.only):
                yield Use(charge, urls, region, frozenset(names))


def _by_host(names: Hosts, hosts: list[Host]) -> dict[str, Any]:
    known = [host.name for host in hosts if host.name != OTHERS]
    if OTHERS not in names:
        return {"only": {"host": [name for name in known if name in names]}}
    others = [name for name in known if name not in names]
    return {"allow": {"host": others}} if others else {}


def _note_shared_zones(uses: list[Use], notes: Notes) -> None:
    for one, other in combinations(uses, 2):
        zone = one.charge.limit.zone
        if zone is other.charge.limit.zone and _share(one, other):
            text = f"the zone {zone.name} is used in several places, which share one count in nginx; here each counts by itself"
            notes.add(zone.directive, text)


def _share(one: Use, other: Use) -> bool:
    """Whether nginx may count a request of the one and a request of the other together."""
    mine, theirs = one.charge.key, other.charge.key
    if (mine.actors, mine.constant) != (theirs.actors, theirs.constant):
        return False
    if "host" in mine.actors and not one.hosts & other.hosts:
        return False
    return not (
        "path" in mine.actors and (one.charge == other.charge or not one.region & other.region)
    )


def _rule(use: Use, names: _Names) -> dict[str, Any]:
    limit, key = use.charge
    actors = list(key.actors)
    rule: dict[str, Any] = {
        "name": names.next(limit.zone.name),
        "actor": (actors[0] if len(actors) == 1 else actors) if actors else "all",
    }
    if key.missing:
        rule["missing"] = key.missing
    allow = {actor: list(values) for actor, values in key.allow}
    only = {actor: list(values) for actor, values in key.only}
    if use.urls.allowed:
        allow["path"] = [*allow.get("path", ()), *use.urls.allowed]
    if use.urls.only:
        only["path"] = list(use.urls.only)
    if allow:
        rule["allow"] = allow
    if only:
        rule["only"] = only
    if limit.zone.kind == "limit_req":
        rule |= {"unit": limit.zone.unit, "rpu": limit.zone.rpu}
    return {**rule, **dict(limit.numbers), **dict(limit.answer)}


class _Names:
    """A zone's name for its first rule, then numbered."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def next(self, zone: str) -> str:
        plain = "".join(sign if sign.isprintable() else "?" for sign in zone)[:LONGEST_NAME]
        plain = plain.strip() or "zone"
        name, number = plain, 1
        while name in self._taken:
            number += 1
            name = f"{plain} {number}"
        self._taken.add(name)
        return name
