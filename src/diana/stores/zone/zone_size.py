"""Sizes of a zone, and how they are spelled."""

from __future__ import annotations

import re

from diana.core.errors import ConfigError, shown

DEFAULT_SIZE = 16 << 20
SMALLEST_SIZE = 4 << 20
LARGEST_SIZE = 64 << 30


_SIZE = re.compile(r"([0-9]{1,12})([kmg]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def size_from_spelling(spelling: str) -> int:
    """`64m` in bytes."""
    found = _SIZE.fullmatch(spelling)
    size = int(found[1]) * _UNITS[found[2].lower()] if found else 0
    if not SMALLEST_SIZE <= size <= LARGEST_SIZE:
        smallest, largest = spelling_from_size(SMALLEST_SIZE), spelling_from_size(LARGEST_SIZE)
        raise ConfigError(
            f"size is {shown(spelling)}; write one from {smallest} to {largest}, such as size=64m"
        )
    return size


def spelling_from_size(size: int) -> str:
    for unit in ("g", "m", "k"):
        if size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}"
    return str(size)
