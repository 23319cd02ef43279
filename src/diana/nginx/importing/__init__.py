"""`limit_req` and `limit_conn` of nginx as a rules file.

    configuration.py  text to directives: quotes, blocks, includes
    tables.py         what a `map` or a `geo` makes of a property of a request
    properties.py     nginx's variables as actors
    maps.py geo.py    the two kinds of tables
    keys.py           a zone's key as actors, with the lists of clients that are exempt
    zones.py          what nginx counts in
    limits.py         what limits at a level, inherited from those above
    locations.py      in which location a path is served
    servers.py        which servers may serve a host
    paths.py          paths of locations as urls
    regions.py        sets of paths as urls with exceptions
    charges.py        which limits a path of a server is charged to
    moves.py          what sends a request to another location
    rules.py          the rules that come out
    notes.py          what a person has to know

nginx serves a request in one location; in a rules file all blocks that cover a url apply. What nginx tells apart and rules cannot (sockets,
slashes at the end of a path) is charged to the limits of all, or of the location that names it, with a note.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import yaml

from diana.core.errors import ConfigError
from diana.nginx.importing.charges import Charges, ServerCharges, tree_of_servers
from diana.nginx.importing.configuration import Directive, read_configuration
from diana.nginx.importing.limits import level_of
from diana.nginx.importing.moves import note_addresses, note_headers, note_moves, note_paths
from diana.nginx.importing.notes import Note, Notes
from diana.nginx.importing.regions import Cell
from diana.nginx.importing.rules import blocks_of_charges
from diana.nginx.importing.servers import (
    OTHERS,
    Host,
    hosts_of_servers,
    read_servers,
)
from diana.nginx.importing.zones import read_zones
from diana.rules.loading import rules_from_bytes


class Imported(NamedTuple):
    document: dict[str, Any]
    """As a rules file has it."""
    notes: list[Note]
    """What a person has to look at."""

    def text(self) -> str:
        return yaml.safe_dump(self.document, sort_keys=False, allow_unicode=True, width=120)


def import_nginx(path: str) -> Imported:
    notes = Notes()
    http = read_configuration(path)
    zones = read_zones(http)
    servers = read_servers(http, level_of(http, {}), zones, notes)
    hosts = hosts_of_servers(servers)
    tree = tree_of_servers(servers, notes)
    of_server = {server: ServerCharges(server, tree, notes).by_cell() for server in servers}
    charged = {
        host.name: _charges_of_host(host, [of_server[one] for one in host.servers], notes)
        for host in hosts
    }
    for server in servers:
        note_moves(server, notes)
    document = {"limits": blocks_of_charges(charged, tree, hosts, notes)}
    _note_requests(http, charged, notes)
    imported = Imported(document, notes.all())
    _check(imported, path)
    return imported


def _charges_of_host(
    host: Host, of_servers: list[dict[Cell, Charges]], notes: Notes
) -> dict[Cell, Charges]:
    """A request is charged to the limits of all servers that may serve it."""
    first, *others = of_servers
    charged = {
        cell: tuple(dict.fromkeys(one for by_cell in of_servers for one in by_cell[cell]))
        for cell in first
    }
    for server, by_cell in zip(host.servers[1:], others, strict=True):
        if any(set(by_cell[cell]) != set(first[cell]) for cell in first):
            notes.add(server.directive, _not_told_apart(host))
    return charged


def _not_told_apart(host: Host) -> str:
    name = "hosts that are not listed" if host.name == OTHERS else f"host {host.name}"
    first = host.servers[0].directive
    return (
        f"requests of {name} are served here or by the server of line {first.line}, by port or by a pattern of names; "
        "rules cannot tell, and charge them to the limits of both"
    )


def _note_requests(http: Directive, charged: dict[str, dict[Cell, Charges]], notes: Notes) -> None:
    charges = {
        one for by_cell in charged.values() for charges in by_cell.values() for one in charges
    }
    properties = {
        actor
        for charge in charges
        for actor in (
            *charge.key.actors,
            *(actor for actor, _ in (*charge.key.allow, *charge.key.only)),
        )
    }
    if "ip" in properties:
        note_addresses(http, notes)
    if any(actor.startswith("header ") for actor in properties):
        note_headers(http, notes)
    if any(len({frozenset(some) for some in by_cell.values()}) > 1 for by_cell in charged.values()):
        note_paths(http, notes)


def _check(imported: Imported, path: str) -> None:
    """A rules file that cannot be read is no help."""
    if not imported.document["limits"]:
        return
    try:
        rules_from_bytes(imported.text().encode(), path)
    except ConfigError as error:
        raise ConfigError(
            f"{path}: its limits must be such that a rules file can have them: {error.message}"
        ) from None
