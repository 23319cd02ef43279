"""Writing a file whole or not at all, by one process at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from stat import S_ISREG
from typing import BinaryIO

from diana.core.errors import SourceError

try:
    import fcntl
except ModuleNotFoundError:  # a system without them
    fcntl = None  # type: ignore[assignment]


def write_atomically(path: Path, text: bytes, like: Path | None = None) -> None:
    """Through a symlink, too; with the mode and, where permitted, the owner of the old file, or of the file it is to be `like`."""
    target = resolve_links(path)
    replace_file(target, text, like or target)


def replace_file(path: Path, text: bytes, like: Path, mode: int = 0o666) -> None:
    """What is at the path itself: a symlink would be replaced, not followed. If there is no file that it is to be `like`, it gets the
    mode, less the process's umask."""
    # A random name: several guards of one process may write to the same path.
    new = path.with_name(f".{path.name}.{token_hex(8)}.new")
    try:
        with open(new, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            _copy_owner_and_mode(like, file)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        with suppress(
            OSError
        ):  # it is gone if all went well; if nothing did, this fails as the rest
            new.unlink()


def resolve_links(path: Path) -> Path:
    """The file that a path leads to."""
    return Path(os.path.realpath(path))


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """One process at a time compares and writes in this folder. The folder itself is locked, so no lock file is left behind."""
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network drives lock no folder; there, comparing has to do
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _copy_owner_and_mode(other: Path, file: BinaryIO) -> None:
    if not hasattr(os, "chown"):  # a system with other rights than these
        return
    try:
        was = other.lstat()
    except FileNotFoundError:
        return
    if not S_ISREG(was.st_mode):
        return
    for owner in (was.st_uid, -1):
        with suppress(PermissionError):
            os.chown(file.fileno(), owner, was.st_gid)
            break
    os.chmod(file.fileno(), was.st_mode & 0o777)
