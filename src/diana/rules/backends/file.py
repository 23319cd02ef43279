"""Rules from a file, or from a directory of them."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from threading import Event
from urllib.parse import unquote, urlsplit

from diana.core.contracts import Revision
from diana.core.errors import ConfigError, SourceError
from diana.rules.backends.atomic_file import folder_lock, resolve_links, write_atomically
from diana.rules.document.yaml_tree import LARGEST_BYTES, join_files

POLL_SECONDS = 0.5
SETTLE_SECONDS = 0.05
"""A file that is written in place is read when it has stayed the same for so long, or half of it would be taken for all."""
SUFFIXES = (".yaml", ".yml")

FileStamp = tuple[tuple[str, int, int, int, int], ...]


class FileSource:
    """`diana.yaml`, `file:///etc/diana/diana.yaml`, or a directory: its .yaml and .yml files in the order of their names.

    A change is seen by looking twice a second: what is at the path is asked, not the file that was once opened, so editors that write a new
    file and rename it, and Kubernetes, which swaps a symlink, are followed, too.
    """

    def __init__(self, path: Path) -> None:
        self._shown = path
        self._path = path.absolute()  # a server that becomes a daemon changes its folder
        self._closed = Event()
        self._lost = False

    @property
    def place(self) -> str:
        """As operators know it."""
        return str(self._path)

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

    def load(self) -> Revision:
        if self._lost:
            self._settle()
        try:
            text = self._text()
        except OSError as error:
            self._lost = True
            inside = error.filename and Path(error.filename).parent == self._path
            shown = self._shown / Path(error.filename).name if inside else self._shown
            where = "" if self._shown.is_absolute() else f" (as {self._path})"
            raise SourceError(f"{shown}: cannot be read: {error.strerror}{where}") from None
        self._lost = False
        return _edition(text)

    def watch(self, known: Revision) -> Iterator[Revision]:
        seen = settling = None
        pause = 0.0
        while not self._closed.wait(pause):
            signature = self._signature()
            if signature == seen:
                pause = POLL_SECONDS
            elif signature != settling:
                settling, pause = signature, SETTLE_SECONDS
            else:
                edition = self.load()
                if self._signature() != signature:
                    settling, pause = None, SETTLE_SECONDS  # half of it may have been read
                    continue
                seen, pause = signature, POLL_SECONDS
                if edition.version != known.version:
                    known = edition
                    yield edition

    def close(self) -> None:
        self._closed.set()

    def publish(self, text: bytes, seen: Revision | None) -> Revision:
        path = resolve_links(self._path)
        try:
            if path.is_dir():
                raise SourceError(f"{self._shown} is a directory; name a file in it")
            with folder_lock(path.parent):
                there = self.load() if path.exists() else None
                if (there and there.version) != (seen and seen.version):
                    raise SourceError(
                        f"{self._shown} has changed since it was read; run the command again"
                    )
                if there is not None:
                    write_atomically(self._previous_path, there.text, like=path)
                write_atomically(path, text)
        except OSError as error:
            raise SourceError(f"{self._shown}: cannot be written: {error.strerror}") from None
        return _edition(text)

    def previous(self) -> Revision:
        try:
            if self._previous_path.exists():
                return FileSource(self._previous_path).load()
        except OSError as error:
            raise SourceError(f"{self._shown}: cannot be read: {error.strerror}") from None
        raise SourceError(f"{self._shown}: there is no previous edition beside it")

    @property
    def _previous_path(self) -> Path:
        path = resolve_links(self._path)
        return path.with_name(f"{path.name}.previous")

    def _settle(self) -> None:
        """After a loss, wait until the file is no longer being written."""
        before = None
        while (now := self._signature()) != before and not self._closed.wait(SETTLE_SECONDS):
            before = now

    def _text(self) -> bytes:
        files = self._files()
        parts = []
        for path in files:
            with path.open("rb") as file:
                parts.append((path.name, file.read(LARGEST_BYTES + 1)))
        if not self._path.is_dir():
            return parts[0][1]
        if not parts:
            raise FileNotFoundError(2, "there is no .yaml or .yml file in it")
        return join_files(parts)

    def _files(self) -> list[Path]:
        if not self._path.is_dir():
            return [self._path]
        found = (path for path in self._path.iterdir() if path.suffix.lower() in SUFFIXES)
        return sorted(path for path in found if not path.name.startswith("."))

    def _signature(self) -> FileStamp:
        try:
            found = [(path, path.stat()) for path in self._files()]
        except OSError:
            return ()
        # With ctime, by which a change of rights is seen, and one that put the time of the file back.
        return tuple(
            (str(path), stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino)
            for path, stat in found
        )


def _edition(text: bytes) -> Revision:
    return Revision(text, sha256(text).hexdigest()[:12])
