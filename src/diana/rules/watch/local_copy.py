"""A local copy of the last good remote rules, for a start while the remote source is unreachable."""

from __future__ import annotations

import os
from contextlib import suppress
from errno import ELOOP
from pathlib import Path
from stat import S_ISLNK, S_ISREG
from threading import Event, Lock, Thread

from diana.core.errors import SourceError
from diana.rules.backends.atomic_file import replace_file
from diana.rules.document.yaml_tree import LARGEST_BYTES
from diana.rules.watch.rules_health import Problems

RETRY_SECONDS = 5.0
WITHOUT_SURPRISES = (
    getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
)
"""A link is not followed, and a pipe is not waited for."""
IS_SYMLINK = "is a symlink, which is not followed; write in keep the path of the file itself"


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
            descriptor = os.open(self.path, os.O_RDONLY | WITHOUT_SURPRISES)
        except FileNotFoundError:
            return None
        except OSError as error:
            said = IS_SYMLINK if error.errno == ELOOP else f"cannot be read: {error.strerror}"
            raise SourceError(f"{self.path}: {said}") from None
        with open(descriptor, "rb") as file:
            self._refuse_foreign(os.fstat(descriptor))
            return file.read(LARGEST_BYTES + 1)

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
        try:
            Thread(target=self._keep_trying, daemon=True, name="diana-rules-copy").start()
        except (
            RuntimeError
        ):  # the system has no room for another thread: the next edition tries again
            self._is_retrying = False

    def _keep_trying(self) -> None:
        while not self._closed.wait(RETRY_SECONDS):
            self._write_pending()
            with self._lock:
                if self._pending is None:
                    self._is_retrying = False
                    return

    def _replace(self, text: bytes) -> None:
        with suppress(OSError):  # it is not there yet, or what hinders us hinders writing too
            self._refuse_foreign(self.path.lstat())
        # Rules from a server may hold tokens (`allow`), and only this user reads the copy.
        replace_file(self.path, text, like=self.path, mode=0o600)

    def _refuse_foreign(self, found: os.stat_result) -> None:
        """In a shared folder another user could have put it there: rules to be believed, or a link to be written through."""
        if S_ISLNK(found.st_mode):
            raise SourceError(f"{self.path}: {IS_SYMLINK}")
        if not S_ISREG(found.st_mode):
            raise SourceError(f"{self.path}: is no regular file, so it is not used")
        if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
            raise SourceError(
                f"{self.path}: belongs to another user (uid {found.st_uid}), so it is not used; remove it"
            )

    def _write_pending(self) -> None:
        with self._lock:
            if self._pending is None:
                return
            try:
                self._replace(self._pending)
            except SourceError as error:
                if not self._closed.is_set():
                    self._problems.report("copy", str(error))
                return
            self._pending = None
        self._problems.clear("copy")
