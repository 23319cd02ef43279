"""On which paths something holds, and which urls of rules say so.

Paths are told apart at the segments that locations name: a path that ends with one of them, with or without a slash, and all paths below it
that no other one names. A region is a set of these cells. A rule's url covers all below it, less what `except` names, and less single paths
on an `allow` list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from diana.nginx.importing.paths import url_of_segments

Segments = tuple[str, ...]


class Cell(NamedTuple):
    segments: Segments
    is_below: bool
    """All below it that is not named; else itself."""


Region = frozenset[Cell]


class Urls(NamedTuple):
    """Fields of a block, and the lists that its rules need."""

    url: str
    excepted: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    """Single paths that are left alone."""
    only: tuple[str, ...] = ()
    """Single paths that it is for, if it is not for all."""


class Tree:
    """The segments that locations name."""

    def __init__(self, paths: Iterable[Segments]) -> None:
        self._children: dict[Segments, list[Segments]] = {(): []}
        for path in paths:
            for length in range(1, len(path) + 1):
                segments = path[:length]
                if segments not in self._children:
                    self._children[segments] = []
                    self._children[segments[:-1]].append(segments)

    def cells(self) -> Iterator[Cell]:
        for segments in self._children:
            yield Cell(segments, False)
            yield Cell(segments, True)

    def children(self, segments: Segments) -> list[Segments]:
        return self._children[segments]

    def urls(self, region: Region, may_list: bool) -> list[Urls]:
        """As few as possible, since several of them are several counters. `may_list`: single paths may be listed in `only`."""
        found = list(self._urls((), region))
        singles = [cell.segments for cell in region if not cell.is_below]
        if may_list and len(found) > 1 and len(singles) == len(region):
            around = _common(singles)
            return [
                Urls(url_of_segments(around), only=tuple(map(url_of_segments, sorted(singles))))
            ]
        return found

    def _urls(self, segments: Segments, region: Region) -> Iterator[Urls]:
        """Of what lies under these segments."""
        if Cell(segments, True) in region:
            yield from self._covering(segments, region)
            return
        if Cell(segments, False) in region:
            yield Urls(url_of_segments(segments), (url_of_segments(segments, below=True),))
        for child in self._children[segments]:
            yield from self._urls(child, region)

    def _covering(self, top: Segments, region: Region) -> Iterator[Urls]:
        """One url from here on down, and others for what lies in what it excepts."""
        excepted: list[str] = []
        allowed: list[str] = []
        apart: list[Segments] = []
        waiting = self._children[top][::-1]
        while waiting:
            segments = waiting.pop()
            itself, below = Cell(segments, False) in region, Cell(segments, True) in region
            if below:
                waiting += self._children[segments][::-1]
                if not itself:
                    allowed.append(url_of_segments(segments))
            else:
                excepted.append(url_of_segments(segments, below=itself))
                apart += self._children[segments]
        itself = Cell(top, False) in region
        yield Urls(url_of_segments(top, below=not itself), tuple(excepted), tuple(allowed))
        for segments in apart:
            yield from self._urls(segments, region)


def _common(paths: list[Segments]) -> Segments:
    common = paths[0]
    for path in paths:
        while path[: len(common)] != common:
            common = common[:-1]
    return common
