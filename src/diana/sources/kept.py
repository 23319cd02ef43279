"""The last good copy of the remote rules, for a start without them."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Lock, Thread

from diana.core.errors import SourceError
from diana.sources.file import FileSource
from diana.sources.replacing import replace
from diana.sources.troubles import Troubles

RETRY_SECONDS = 5.0


class Kept:
    """A copy that cannot be written is told, and tried again until it can."""

    def __init__(self, path: Path, troubles: Troubles, closed: Event) -> None:
        self.path = path
        self._troubles = troubles
        self._closed = closed
        self._lock = Lock()
        self._owed: bytes | None = None
        self._is_retried = False

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
            self._owed = text
        self._pay()
        with self._lock:
            if self._owed is None or self._is_retried:
                return
            self._is_retried = True
        self._retry()

    def after_fork(self, closed: Event) -> None:
        """The parent's threads and locks are the parent's."""
        self._lock, self._closed = Lock(), closed
        if self._is_retried:
            self._retry()

    def _retry(self) -> None:
        Thread(target=self._keep_trying, daemon=True, name="diana-rules-kept").start()

    def _keep_trying(self) -> None:
        while not self._closed.wait(RETRY_SECONDS):
            self._pay()
            with self._lock:
                if self._owed is None:
                    self._is_retried = False
                    return

    def _pay(self) -> None:
        with self._lock:
            if self._owed is None:
                return
            try:
                replace(self.path, self._owed)
            except SourceError as error:
                if not self._closed.is_set():
                    self._troubles.complain("kept", str(error))
                return
            self._owed = None
        self._troubles.well("kept")
