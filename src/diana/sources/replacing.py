"""A file that is replaced whole or not at all, by one at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from diana.core.errors import SourceError

try:
    import fcntl
except ModuleNotFoundError:  # a system without them
    fcntl = None  # type: ignore[assignment]


def replace(path: Path, text: bytes, like: Path | None = None) -> None:
    """Behind a symlink, too; with the mode and, as far as we may, the owner of what was there, or of the file it is to be `like`."""
    target = real(path)
    # A name that nobody can guess or share: several guards of one process may keep a copy at the same place.
    new = target.with_name(f".{target.name}.{token_hex(8)}.new")
    try:
        with new.open("xb") as file:
            _look_like(like or target, file)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, target)
    except OSError as error:
        raise SourceError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        with suppress(
            OSError
        ):  # it is gone if all went well; if nothing did, this fails as the rest
            new.unlink()


def real(path: Path) -> Path:
    """Where the links lead."""
    return Path(os.path.realpath(path))


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Whoever compares and writes in this folder does so alone. The folder itself is locked: so no file is left behind."""
    if fcntl is None:
        yield
        return
    held = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network drives lock no folder; there, comparing has to do
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _look_like(other: Path, file: BinaryIO) -> None:
    if not hasattr(os, "chown"):  # a system with other rights than these
        return
    try:
        was = other.stat()
    except FileNotFoundError:
        return
    for owner in (was.st_uid, -1):
        with suppress(PermissionError):
            os.chown(file.fileno(), owner, was.st_gid)
            break
    os.chmod(file.fileno(), was.st_mode & 0o777)
