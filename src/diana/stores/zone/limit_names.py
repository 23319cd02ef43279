"""The names of the limits in a zone of the native kind, for `diana zone`: such a zone holds a hash of each, and no text.

They stand in a file beside the zone's, `diana-UID-NAME.names`: a line for each limit, its hash and its identity. Every process that uses
the zone appends the limits that are not in it yet, each line by a single write, so processes need no lock. No decision reads the file, and
nothing depends on it: if it cannot be read or written, `diana zone` shows hashes. It has at most LARGEST_BYTES, and is removed with the
zone.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

SUFFIX = ".names"
LARGEST_BYTES = 1 << 20
LONGEST_LINE = 4_000
"""Longer ones might be written in two pieces."""


class LimitNames:
    """Of one zone; made anew in every process."""

    def __init__(self, zone: Path) -> None:
        self._path = path_of_names(zone)
        self._known: dict[bytes, str] | None = None

    def add(self, owner: bytes, id: str) -> None:
        """Once for each limit of this process, while it starts."""
        known = self.known()
        if owner in known:
            return
        known[owner] = id
        # It begins with the line break: a line that was cut short spoils no other.
        line = f"\n{owner.hex()} {json.dumps(id)}".encode()
        if len(line) <= LONGEST_LINE:
            _append(self._path, line)

    def known(self) -> dict[bytes, str]:
        """By its hash, what each limit is called."""
        if self._known is None:
            self._known = dict(_lines(self._path))
        return self._known


def path_of_names(zone: Path) -> Path:
    return zone.with_suffix(SUFFIX)


def remove_names(zone: Path) -> None:
    path_of_names(zone).unlink(missing_ok=True)


def _append(path: Path, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
        try:
            status = os.fstat(descriptor)
            if _is_ours(status) and status.st_size + len(line) <= LARGEST_BYTES:
                os.write(descriptor, line)
        finally:
            os.close(descriptor)
    except OSError:
        return  # names are a convenience


def _lines(path: Path) -> Iterator[tuple[bytes, str]]:
    for line in _text(path).splitlines():
        owner, _, name = line.partition(b" ")
        try:
            yield bytes.fromhex(owner.decode("ascii")), str(json.loads(name))
        except ValueError:
            continue  # cut short when the disk was full


def _text(path: Path) -> bytes:
    """Empty if it is not this user's, or not there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            return file.read(LARGEST_BYTES) if _is_ours(os.fstat(descriptor)) else b""
    except OSError:
        return b""


def _is_ours(status: os.stat_result) -> bool:
    """In a directory that all may write to, any user may have put it there."""
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_uid == os.geteuid()
        and not stat.S_IMODE(status.st_mode) & 0o077
    )
