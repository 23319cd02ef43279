"""Paths that leave the upstream's prefix, in whichever way the upstream reads them.

`--upstream http://h/v1` puts `/v1` before every path. To some servers `/../admin` is then `/admin`, which the prefix was to keep out, and
`/../v1/login` is `/login` behind it, which the rules took for `/v1/login`. Which characters part segments differs from server to server:

    /a/../..      /a/%2e%2e/%2E.      /a\\..\\..      /a/..;x=1/..      /a%2f..%2f..      /%252e%252e/      /.%09./

So the depth is counted as the worst of them would: whatever may be a step up is one, and only what is a step down to all of them is one.
"""

from __future__ import annotations

import re

_SUSPICIOUS = re.compile(rb"\.[\x00-\x20\x7f]*\.|%")
_DOT = re.compile(rb"%2e", re.IGNORECASE)
_SEPARATOR = re.compile(rb"([/\\;\x00-\x1f\x7f]|%(?:2f|5c|3b|[01][0-9a-f]|7f))", re.IGNORECASE)
_BLANK = re.compile(rb"[\x00-\x20\x7f]|%(?:[01][0-9a-f]|20|7f)", re.IGNORECASE)
_MOST_DECODED = 4
"""What is encoded more often than this is refused: it was made to be read differently."""


def escapes_prefix(path: bytes) -> bool:
    """May it lead above where it starts?"""
    if _SUSPICIOUS.search(path) is None:
        return False
    for _ in range(_MOST_DECODED):
        if _leads_up(path) or _leads_up(_BLANK.sub(b"", path)):
            return True
        if b"%25" not in path:
            return False
        path = path.replace(b"%25", b"%")
    return True


def _leads_up(path: bytes) -> bool:
    depth = 0
    _, *split = _SEPARATOR.split(_DOT.sub(b".", path))
    for separator, part in zip(split[::2], split[1::2], strict=True):
        if part == b"..":
            depth -= 1
            if depth < 0:
                return True
        elif separator == b"/" and part not in (b"", b"."):
            depth += 1
    return False
