"""A folder's files as one document, each behind a line that names it: so a mistake is told where people find it."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from typing import NamedTuple

MARK = b"# diana: the file "

_MARKED = re.compile(rb"^(?:--- )?" + MARK + rb"(.*)$", re.MULTILINE)


def join_files(parts: list[tuple[str, bytes]]) -> bytes:
    """By name and content."""
    return b"--- ".join(_marked(name, text.removeprefix(BOM_UTF8)) for name, text in parts)


def _marked(name: str, text: bytes) -> bytes:
    end = b"" if text.endswith(b"\n") else b"\n"
    return MARK + ascii(name)[1:-1].encode() + b"\n" + text + end


class SourceLine(NamedTuple):
    file: str
    line: int | None


class SourceMap:
    """Which file of a folder a line came from; of a single document, the document."""

    def __init__(self, name: str, content: bytes) -> None:
        self._name = name
        self._content = content

    def spot(self, line: int | None) -> SourceLine:
        if not line:  # what stands in code has none
            return SourceLine(self._name, None)
        file, before = self._name, 0
        for mark in _MARKED.finditer(self._content):
            at = self._content.count(b"\n", 0, mark.start()) + 1
            if at >= line:  # what is noticed at a mark is that the file before is not finished
                break
            file, before = f"{self._name.rstrip('/')}/{mark[1].decode()}", at
        return SourceLine(file, line - before)
