"""Which characters are not printable, and which are digits, by the tables of the Python that exports: Lua knows bytes only."""

from __future__ import annotations

from collections.abc import Iterator
from sys import maxunicode
from unicodedata import decimal


def unicode_tables() -> str:
    ranges = ",".join(f"{first},{last}" for first, last in _not_printable())
    zeros = ",".join(
        str(point) for point in range(128, maxunicode + 1) if decimal(chr(point), -1) == 0
    )
    return f"-- Written by diana export nginx.\nreturn {{not_printable = {{{ranges}}}, zeros = {{{zeros}}}}}\n"


def _not_printable() -> Iterator[tuple[int, int]]:
    first = None
    for point in range(127, maxunicode + 2):
        printable = point > maxunicode or chr(point).isprintable()
        if printable and first is not None:
            yield first, point - 1
            first = None
        elif not printable and first is None:
            first = point
