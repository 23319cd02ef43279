"""Identities as keys: injective, bounded, and nothing secret in them.

No value can be chosen so that two identities share a counter: a value as it is stands behind `=`, a digest behind `#`, one found for want
of an identity behind `?`. The parts of a combination say how long they are.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

LONGEST_PLAIN = 64
LONGEST_REMEMBERED = 256


def key_from_value(value: str) -> str:
    """`=alice`, or `#` and a digest if it is long, or no text that can be written down."""
    if len(value) <= LONGEST_PLAIN and (value.isascii() or value.isprintable()):
        return f"={value}"
    return f"#{digest(value)}"


def key_from_secret(value: str) -> str:
    """`#` and a digest: what a header or a cookie holds may be a credential."""
    return _remembered(value) if len(value) <= LONGEST_REMEMBERED else f"#{digest(value)}"


def key_from_parts(keys: list[str]) -> str:
    """Several keys as one."""
    return "".join(f"{len(key)}{key}" for key in keys)


def digest(value: str) -> str:
    """128 bits of SHA-256 in hex: other gateways can compute it too."""
    return sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@lru_cache(4_096)
def _remembered(value: str) -> str:
    return f"#{digest(value)}"
