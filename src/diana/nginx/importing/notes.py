"""What a person has to know: what was not translated, or means something else here, each with its file and line."""

from __future__ import annotations

from typing import NamedTuple

from diana.nginx.importing.configuration import Directive


class Note(NamedTuple):
    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


class Untranslatable(Exception):
    """Why."""


class Notes:
    """Each once, in the order in which they were found."""

    def __init__(self) -> None:
        self._notes: dict[Note, None] = {}

    def add(self, one: Directive, text: str) -> None:
        self._notes[Note(one.file, one.line, text)] = None

    def all(self) -> list[Note]:
        return list(self._notes)
