"""A local copy of the last good remote rules, for a start while the remote source is unreachable."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Lock, Thread

from diana.core.errors import SourceError
from diana.sources.following.problems import Problems
from diana.sources.places.atomic_write import write_atomically
from diana.sources.places.file import FileSource

RETRY_SECONDS = 5.0


class LocalCopy:
    """A copy that cannot be written is reported, and tried again until it can."""

    def __init__(self, path: Path, problems: Problems, closed: Event) -> None:
        self.path = path
        self._problems = problems
        self._closed = closed
        self._lock = Lock()
        self._pending: bytes | None = None
        self._is_retrying = False

    def text(self) -> bytes | None:
        """None if there is no copy."""
        try:
            if not self.path.exists():
                return None
        except OSError as error:  # in a folder that we may not look into
            raise SourceError(f"{self.path}: cannot be read: {error.strerror}") from None
        return FileSource(self.path).load().text

    def write(self, text: bytes) -> None:
        with self._lock:
            self._pending = text
        self._write_pending()
        with self._lock:
            if self._pending is None or self._is_retrying:
                return
            self._is_retrying = True
        self._retry()

    def after_fork(self, closed: Event) -> None:
        """The parent's threads do not exist here, and its locks may be locked."""
        self._lock, self._closed = Lock(), closed
        if self._is_retrying:
            self._retry()

    def _retry(self) -> None:
        Thread(target=self._keep_trying, daemon=True, name="diana-rules-copy").start()

    def _keep_trying(self) -> None:
        while not self._closed.wait(RETRY_SECONDS):
            self._write_pending()
            with self._lock:
                if self._pending is None:
                    self._is_retrying = False
                    return

    def _write_pending(self) -> None:
        with self._lock:
            if self._pending is None:
                return
            try:
                write_atomically(self.path, self._pending)
            except SourceError as error:
                if not self._closed.is_set():
                    self._problems.report("copy", str(error))
                return
            self._pending = None
        self._problems.clear("copy")
