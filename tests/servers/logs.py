"""What the servers said while a test ran: a test that fails shows it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_MOST = 20_000
"""Characters of each log; of a longer one the end."""


class _Said(NamedTuple):
    name: str
    text: str


class _Logs:
    def __init__(self) -> None:
        self._open: dict[Path, tuple[str, int]] = {}
        self._closed: list[_Said] = []

    def begin(self) -> None:
        """A test begins: what was said before is no longer of interest."""
        self._closed.clear()
        for path, (name, _) in self._open.items():
            self._open[path] = name, path.stat().st_size if path.exists() else 0

    def open(self, name: str, path: Path) -> None:
        """A server writes to this file from now on, from its start."""
        self.close(path)
        self._open[path] = name, 0

    def close(self, path: Path) -> None:
        """The file is about to go, or to be written anew."""
        if path in self._open:
            self._closed.append(self._read(path))
            del self._open[path]

    def said(self) -> list[_Said]:
        """Since the test began, by servers that run and by those that ended."""
        return [*self._closed, *map(self._read, self._open)]

    def _read(self, path: Path) -> _Said:
        name, begin = self._open[path]
        try:
            written = path.read_bytes()
        except OSError as error:
            return _Said(name, f"({error})")
        return _Said(name, written[begin:].decode(errors="replace")[-_MOST:])


LOGS = _Logs()
"""Of all servers that this process started."""
