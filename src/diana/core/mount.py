"""Mounts: prefixes under which the same handlers are reached, so that a path is read with and without.

`root_path` and `SCRIPT_NAME` are told by the server or the framework; of others the setting `mounts` knows. Whether the prefix is part
of the path depends on who took it off, so both are tried: a rule on `/login` covers `/api/login`, and one on `/api/login` covers `/login`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from diana.core.path import PathReading, path_of_segments, readings_of_path, segments_of_path


class Readings(NamedTuple):
    sent: tuple[PathReading, ...]
    """What the client may have meant: as it was sent, and without the mounts it was sent under."""
    added: tuple[PathReading, ...] = ()
    """The same under the mounts it was not sent under: rules may be written for that."""

    @property
    def all(self) -> tuple[PathReading, ...]:
        return self.sent + self.added


def readings_under_mounts(
    path: str, mount: str, mounts: tuple[PathReading, ...]
) -> Readings | None:
    """All readings of a path, of an application mounted at `mount`, behind others that mount it at any of `mounts`."""
    prefixes = tuple(filter(None, (segments_of_path(mount), *mounts)))
    sent: dict[PathReading, None] = {}
    # Before the path is read, too: `/a/b/../login` is `/../login` behind a mount at /a/b.
    for text in (path, *_without(path, (mount, *map(path_of_segments, mounts)))):
        readings = readings_of_path(text)
        if readings is None:
            return None
        sent |= dict.fromkeys(readings)
    for _ in prefixes:
        for prefix in prefixes:
            stripped = [r[len(prefix) :] for r in sent if r[: len(prefix)] == prefix]
            sent |= dict.fromkeys(stripped)
    added = dict.fromkeys(
        prefix + reading
        for prefix in prefixes
        for reading in sent
        if reading[: len(prefix)] != prefix
    )
    return Readings(tuple(sent), tuple(reading for reading in added if reading not in sent))


def _without(path: str, mounts: Iterable[str]) -> list[str]:
    prefixes = (mount.rstrip("/") for mount in mounts)
    return [path[len(prefix) :] for prefix in prefixes if prefix and path.startswith(f"{prefix}/")]
