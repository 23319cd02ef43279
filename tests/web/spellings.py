"""Paths as hostile clients spell them: a seeded table, the same on every run."""

from __future__ import annotations

from random import Random

TARGETS = ["/login", "/search/x/y", "/find/shoes/results", "/users/7", "/a/b/x/c", "/export"]
"""What the handlers of the tests are reached by; every one of them has a rule of its own."""
ENDS = [
    ";v=1", "%3Bv", ";", "%00", "%0A", "%0D", "%09", "%1F", "%7F", "%20", "#f", "%23", "/", "//", "/.", "/..", "/%2e%2e", "%2F",
    "\\", "%5C", "/;x", "/x/..", ".", "/..;/", "?", "%3F", "%FF", "%C3%A9",
]  # fmt: skip
DETOURS = [
    "/.", "/x/..", "/%2e", "/x/%2e%2e", "/x/.%2E", "/", "/;", "/x;y/..", "/x/..;", "\\x\\..", "/x%2F..", "/x//..", "/x/../%2e",
    "/%5Cx/..", "/.;a",
]  # fmt: skip
SEGMENTS = [
    "", "..", ".", "%2e%2e", "a%2Fb", "a%5Cb", "a\\b", ";x", "a;b", "%0A", "a%00b", "%2F", "a%3Bb", "...", "%252F", "%20", "..;",
    "a#b", "%09", "x%2F..", ".%2e",
]  # fmt: skip
PREFIXES = [
    "/api",
    "//",
    "/x/..",
    "/.",
    "/%2e%2e",
    "\\",
    "/%2F",
    "/;",
    "/api/..",
    "/login/..",
    "/search/..",
]


def spellings(count: int, seed: int = 2026) -> list[str]:
    random = Random(seed)
    found: dict[str, None] = dict.fromkeys(TARGETS)
    while len(found) < count:
        path = random.choice(TARGETS)
        for _ in range(random.choice([1, 1, 1, 2, 2, 3, 4])):
            path = _mutated(path, random)
        found.setdefault(path)
    return list(found)


def _mutated(path: str, random: Random) -> str:
    match random.randrange(9):
        case 0:
            return _at_a_slash(path, random.choice(DETOURS), random)
        case 1:
            return path + random.choice(ENDS)
        case 2:
            return _behind_a_segment(path, random.choice(ENDS), random)
        case 3:
            return _another_segment(path, random.choice(SEGMENTS), random)
        case 4:
            return random.choice(PREFIXES) + path
        case 5:
            return _another_separator(
                path, random.choice(["%2F", "%2f", "\\", "%5C", "//"]), random
            )
        case 6:
            return path + random.choice(["/..", "/%2e%2e", "/..;", "\\.."]) + random.choice(TARGETS)
        case _:
            return _encoded(path, random)


def _at_a_slash(path: str, text: str, random: Random) -> str:
    places = [place for place, sign in enumerate(path) if sign == "/"] or [0]
    place = random.choice(places)
    return path[:place] + text + path[place:]


def _behind_a_segment(path: str, text: str, random: Random) -> str:
    places = [place for place, sign in enumerate(path) if sign == "/" and place] or [len(path)]
    place = random.choice(places)
    return path[:place] + text + path[place:]


def _another_segment(path: str, text: str, random: Random) -> str:
    segments = path.split("/")
    if len(segments) > 1:
        segments[random.randrange(1, len(segments))] = text
    return "/".join(segments)


def _another_separator(path: str, text: str, random: Random) -> str:
    places = [place for place, sign in enumerate(path) if sign == "/" and place] or [0]
    place = random.choice(places)
    return path[:place] + text + path[place + 1 :]


def _encoded(path: str, random: Random) -> str:
    places = [place for place, sign in enumerate(path) if sign.isalnum() or sign in "./"]
    if not places:
        return path
    place = random.choice(places)
    code = f"%{ord(path[place]):02{random.choice('xX')}}"
    return path[:place] + code + path[place + 1 :]
