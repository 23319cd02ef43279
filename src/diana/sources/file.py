"""Rules from a file, or from a directory of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from threading import Event
from urllib.parse import unquote, urlsplit

from diana.core.contracts import Edition
from diana.core.errors import ConfigError, SourceError
from diana.sources.document import LARGEST_BYTES

LOOK_SECONDS = 0.5
SETTLE_SECONDS = 0.05
"""A file that is written in place is read when it has stayed the same for so long, or half of it would be taken for all."""
SUFFIXES = (".yaml", ".yml")

Signature = tuple[tuple[str, int, int, int], ...]


class FileSource:
    """`diana.yaml`, `file:///etc/diana/diana.yaml`, or a directory: its .yaml and .yml files in the order of their names.

    A change is seen by looking twice a second: what is at the path is asked, not the file that was once opened, so editors that write a new
    file and rename it, and Kubernetes, which swaps a symlink, are followed like everybody else.
    """

    def __init__(self, path: Path) -> None:
        self._shown = path
        self._path = path.absolute()  # a server that becomes a daemon changes its folder
        self._closed = Event()

    @classmethod
    def from_url(cls, url: str) -> FileSource:
        cls.check_url(url)
        if "://" not in url:
            return cls(Path(url))
        return cls(Path(unquote(urlsplit(url).path)))

    @staticmethod
    def check_url(url: str) -> None:
        if "://" in url and (
            urlsplit(url).netloc not in ("", "localhost") or not urlsplit(url).path
        ):
            raise ConfigError("a file is written file:///path/of/rules.yaml, with three slashes")

    def load(self) -> Edition:
        try:
            text = self._text()
        except OSError as error:
            raise SourceError(f"{self._shown}: cannot be read: {error.strerror}") from None
        return Edition(text, sha256(text).hexdigest()[:12])

    def watch(self, known: Edition) -> Iterator[Edition]:
        # Signed before it is read: a change in between is seen at the next look.
        seen = settling = None
        pause = 0.0
        while not self._closed.wait(pause):
            signature = self._signature()
            if signature == seen:
                pause = LOOK_SECONDS
            elif signature != settling:
                settling, pause = signature, SETTLE_SECONDS
            else:
                seen, pause = signature, LOOK_SECONDS
                edition = self.load()
                if edition.version != known.version:
                    known = edition
                    yield edition

    def close(self) -> None:
        self._closed.set()

    def publish(self, text: bytes, seen: Edition | None) -> Edition:
        if self._path.is_dir():
            raise SourceError(f"{self._shown} is a directory; name a file in it")
        there = self.load() if self._path.exists() else None
        if (there and there.version) != (seen and seen.version):
            raise SourceError(f"{self._shown} was changed by somebody else meanwhile; look again")
        if there is not None:
            replace(self._previous_path, there.text)
        replace(self._path, text)
        return self.load()

    def previous(self) -> Edition:
        if not self._previous_path.exists():
            raise SourceError(f"{self._shown}: there is no previous edition beside it")
        return FileSource(self._previous_path).load()

    @property
    def _previous_path(self) -> Path:
        return self._path.with_name(f"{self._path.name}.previous")

    def _text(self) -> bytes:
        files = self._files()
        parts = []
        for path in files:
            with path.open("rb") as file:
                parts.append(file.read(LARGEST_BYTES + 1))
        if self._path.is_dir() and not parts:
            raise FileNotFoundError(2, "there is no .yaml or .yml file in it")
        return b"\n---\n".join(parts)

    def _files(self) -> list[Path]:
        if not self._path.is_dir():
            return [self._path]
        found = (path for path in self._path.iterdir() if path.suffix.lower() in SUFFIXES)
        return sorted(path for path in found if not path.name.startswith("."))

    def _signature(self) -> Signature:
        try:
            found = [(path, path.stat()) for path in self._files()]
        except OSError:
            return ()
        return tuple(
            (str(path), stat.st_mtime_ns, stat.st_size, stat.st_ino) for path, stat in found
        )


def replace(path: Path, text: bytes) -> None:
    """Whole or not at all."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with new.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise SourceError(f"{path}: cannot be written: {error.strerror}") from None
