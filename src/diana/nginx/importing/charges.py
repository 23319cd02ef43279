"""Which limits a path is charged to in a server, where rules can tell paths apart; and where they cannot."""

from __future__ import annotations

from typing import NamedTuple

from diana.nginx.importing.keys import Key
from diana.nginx.importing.limits import Limit
from diana.nginx.importing.locations import Location, serving
from diana.nginx.importing.notes import Notes, Untranslatable
from diana.nginx.importing.paths import segments_of_location, url_of_segments
from diana.nginx.importing.regions import Cell, Segments, Tree
from diana.nginx.importing.servers import Server

_NEW = "\uffff"
"""What no location's path begins with."""


class Charge(NamedTuple):
    limit: Limit
    key: Key


Charges = tuple[Charge, ...]


def charges_of_location(location: Location, server: Server) -> Charges:
    return tuple(
        Charge(limit, key)
        for limit in location.limits
        for key in limit.zone.cases.keys(server.name)
    )


def tree_of_servers(servers: list[Server], notes: Notes) -> Tree:
    paths: list[Segments] = []
    for server in servers:
        for location in server.root.within():
            if location.is_pattern or not location.path.startswith("/"):
                continue
            segments = segments_of_location(location.path)
            try:
                url_of_segments(segments)
            except Untranslatable as why:
                if location.limits != server.root.limits:
                    notes.add(location.directive, f"{location} is not translated: {why}")
                continue
            paths.append(segments)
    return Tree(paths)


class ServerCharges:
    """Of one server, by cell."""

    def __init__(self, server: Server, tree: Tree, notes: Notes) -> None:
        self._server = server
        self._tree = tree
        self._notes = notes
        self._charges: dict[Location, Charges] = {}

    def by_cell(self) -> dict[Cell, Charges]:
        return {
            cell: self._below(cell.segments) if cell.is_below else self._itself(cell.segments)
            for cell in self._tree.cells()
        }

    def _itself(self, segments: Segments) -> Charges:
        """With and without a slash at its end it is one path. A location that names it decides, or both that do."""
        path = "/" + "/".join(segments)
        if not segments:
            return self._of_path(path)
        bare, slashed = self._of_path(path), self._of_path(path + "/")
        if set(bare) == set(slashed):
            return bare
        at, behind = self._location(path), self._location(path + "/")
        is_bare, is_slashed = at.path == path, behind.path in (path, path + "/")
        if is_bare and is_slashed:
            text = f"{at} and {behind} are one path here, which is charged to the limits of both"
            self._notes.add(behind.directive, text)
            return tuple(dict.fromkeys((*bare, *slashed)))
        named, other = (at, path + "/") if is_bare else (behind, path)
        self._notes.add(
            named.directive,
            f"{named} does not match {other} in nginx; for a url that is the same path, and limited alike",
        )
        return bare if is_bare else slashed

    def _below(self, segments: Segments) -> Charges:
        """Of what no location names; names that only begin like one are among it."""
        around = "/" + "".join(f"{segment}/" for segment in segments)
        charges = self._of_path(around + _NEW)
        for child in self._tree.children(segments):
            longer = f"{around}{child[-1]}"
            location = self._location(longer + _NEW)
            if set(self._of_location(location)) != set(charges):
                text = f"{location} also matches {longer}x in nginx; the url {longer} covers whole segments only"
                self._notes.add(location.directive, text)
        return charges

    def _of_path(self, path: str) -> Charges:
        location, patterns = serving(self._server.root, path)
        charges = self._of_location(location)
        for pattern in patterns:
            if set(self._of_location(pattern)) != set(charges):
                text = f"{pattern} is not translated: a url is no regular expression, and its paths are limited as without it"
                self._notes.add(pattern.directive, text)
        return charges

    def _of_location(self, location: Location) -> Charges:
        charges = self._charges.get(location)
        if charges is None:
            charges = self._charges[location] = charges_of_location(location, self._server)
        return charges

    def _location(self, path: str) -> Location:
        return serving(self._server.root, path)[0]
