"""`except`: urls under which nothing is shed, if all readings of the request's path are under them."""

from __future__ import annotations

from functools import lru_cache

from diana.core.mount import readings_under_mounts
from diana.core.path import PathReading
from diana.core.request import Request
from diana.core.tree import SegmentTree
from diana.core.url import Url

LONGEST_REMEMBERED = 256


class Exemption:
    def __init__(self, urls: tuple[Url, ...], mounts: tuple[PathReading, ...]) -> None:
        tree = SegmentTree((url, url) for url in urls)

        def covers(path: str, mount: str) -> bool:
            """What cannot be read is not exempt: a client could choose to be read badly."""
            readings = readings_under_mounts(path, mount, mounts)
            return readings is not None and all(map(tree.covering, readings.sent))

        self._covers = covers
        self._remembered = lru_cache(4_096)(covers)

    def covers(self, request: Request) -> bool:
        path, mount = request.path, request.mount
        is_short = len(path) + len(mount) <= LONGEST_REMEMBERED
        return (self._remembered if is_short else self._covers)(path, mount)
