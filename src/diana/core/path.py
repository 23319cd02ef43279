"""Paths as rules see them: one spelling for everything a server might take for the same place.

A client chooses how to spell a path. `/login`, `//login`, `/./login`, `/x/../login`, `/login/`, `/%6Cogin`, `/login;v=1`, `/x/..;/login`
and `/\\login` all reach the login page of one server or another, so they must all reach its limit. Where servers differ, the reading
that is limited by more rules is taken: `%2F` and a backslash separate segments, and a segment ends at a control character.

What is not UTF-8 is kept as it is (in surrogates): it matches no rule's own words but everything broader.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

_ORIGIN = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*://[^/?]*")
"""What a client of a proxy sends before the path."""
_PLAIN = re.compile(r"(?:/[^/%;?#.\\\x00-\x1F\x7F][^/%;?#\\\x00-\x1F\x7F]*)+")
_DETOUR = re.compile(r"//|/\.\.?(?:/|\Z)|[\\;?#\x00-\x1F\x7F]|%(?:2[EeFf]|5[Cc]|[01].|7[Ff]|3[Bb])")
_END = re.compile(r"[;\x00-\x1F\x7F]")
"""Parameters, and signs at which one server or another takes a segment to end: `login%0A` matches `^login$`."""


def segments_of_path(path: str) -> tuple[str, ...]:
    """`/a//b/../c/` is ("a", "c")."""
    if _PLAIN.fullmatch(path):
        return tuple(path[1:].split("/"))
    if path == "/":
        return ()
    return _segments_of_odd_path(path)


def is_straight(path: str) -> bool:
    """Whether every server reads the path as it is read here: no detours, no signs that some take for others."""
    return path.startswith("/") and _DETOUR.search(path) is None


def path_of_segments(segments: tuple[str, ...]) -> str:
    return "/" + "/".join(segments)


def _segments_of_odd_path(path: str) -> tuple[str, ...]:
    target = _ORIGIN.sub("", path, 1) if "://" in path else path
    raw = target.partition("?")[0].partition("#")[0]
    kept: list[str] = []
    for part in unquote(raw, errors="surrogateescape").replace("\\", "/").split("/"):
        segment = _END.split(part, 1)[0]
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    return tuple(kept)
