"""Which kind of body does the client like best? From an `Accept` header to one of the kinds at hand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

LONGEST = 512
"""What is longer says nothing that matters here, and would fill the memory of what was read."""

JSON, TEXT, HTML = "json", "text", "html"

_RANGE = re.compile(r"\s*([\w!#$%&'*+.^`|~-]+)/([\w!#$%&'*+.^`|~-]+)\s*((?:;[^,;]*)*)\Z")
_QUALITY = re.compile(r";\s*[qQ]\s*=\s*(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)\s*(?:;|\Z)")
_NAMES = {
    JSON: ("application/problem+json", "application/json"),
    TEXT: ("text/plain",),
    HTML: ("text/html", "application/xhtml+xml"),
}


def preferred_kind(accept: Sequence[str], kinds: tuple[str, ...]) -> str:
    """The kind that the header's lines like best; of equals the first, and the first too if they cannot be read."""
    if not accept or len(kinds) == 1:
        return kinds[0]
    line = accept[0] if len(accept) == 1 else ",".join(accept)
    return kinds[0] if len(line) > LONGEST else _read(line, kinds)


@lru_cache(1_024)
def _read(line: str, kinds: tuple[str, ...]) -> str:
    try:
        wanted = dict(_ranges(line))
    except ValueError:
        return kinds[0]
    # max gives the first of equals.
    return max(kinds, key=lambda kind: max(_quality(name, wanted) for name in _NAMES[kind]))


def _ranges(line: str) -> Iterator[tuple[str, float]]:
    for item in line.split(","):
        if not item.strip():
            continue
        found = _RANGE.match(item)
        if found is None:
            raise ValueError(item)
        quality = 1.0
        if re.search(r";\s*q\s*=", found[3], re.IGNORECASE):
            stated = _QUALITY.search(found[3])
            if stated is None:
                raise ValueError(item)
            quality = float(stated[1])
        yield f"{found[1]}/{found[2]}".lower(), quality


def _quality(name: str, wanted: dict[str, float]) -> float:
    """The most specific range counts, however little it grants."""
    family = name.partition("/")[0]
    for known in (name, f"{family}/*", "*/*"):
        if known in wanted:
            return wanted[known]
    return 0.0
