"""Random requests, of which many are alike: some must be denied."""

from __future__ import annotations

import random
from typing import NamedTuple
from urllib.parse import quote

from diana import Request
from tests.nginx.import_diff.configurations import ADDRESSES, HOSTS, Configuration


class Asked(NamedTuple):
    """To one of the configuration's ports."""

    port: int
    peer: str
    target: str
    """Path and query as they are sent."""
    headers: tuple[tuple[str, str], ...]

    def request(self) -> Request:
        path, _, query = self.target.partition("?")
        return Request("GET", path, self.headers, query, self.peer)

    def message(self) -> bytes:
        lines = [
            f"GET {self.target} HTTP/1.1",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        return "\r\n".join([*lines, "", ""]).encode()


def random_requests(configuration: Configuration, count: int, chance: random.Random) -> list[Asked]:
    paths = _paths(configuration, chance)
    peers = chance.sample(ADDRESSES, 3)
    return [
        Asked(
            chance.randrange(configuration.ports),
            chance.choice(peers),
            chance.choice(paths) + chance.choice(("", "", "", "?item=7", "?item=8", "?Item=7")),
            tuple(_headers(chance)),
        )
        for _ in range(count)
    ]


def _paths(configuration: Configuration, chance: random.Random) -> list[str]:
    """Some that are near the locations' own."""
    found = ["/", "/other"]
    for path in configuration.paths:
        bare = path.rstrip("/")
        found += [
            path,
            bare or "/",
            f"{bare}/",
            f"{bare or '/'}x",
            f"{bare}/other",
            f"{bare}/a",
            f"{bare}/x.php",
        ]
    chosen = chance.sample(found, min(len(found), 5))
    return [
        quote(path) if chance.random() < 0.9 else quote(path).replace("a", "%61") for path in chosen
    ]


def _headers(chance: random.Random) -> list[tuple[str, str]]:
    host = chance.choice((*HOSTS, "other.test", "x.c.test"))
    if chance.random() < 0.1:
        host = chance.choice((host.upper(), f"{host}:8080", f"{host}."))
    found = [("Host", host)]
    if chance.random() < 0.6:
        found.append(("X-Key", chance.choice("1277")))
    if chance.random() < 0.7:
        found.append(("X-Plan", chance.choice(("1", "2", "3", "4", "gold", "Gold"))))
    if chance.random() < 0.2:
        found.append(("Cookie", "sid=1"))
    return found
