"""`allow`, `only` and `deny`: which clients a rule leaves alone, which it is for, and which it denies whatever was counted.

A value that may be a secret (a header, a cookie) is compared by its digest: what a comparison takes longer for, then, is nothing that a
client can use to find the value letter by letter; and a list of ten thousand tokens is looked up as fast as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network
from typing import NamedTuple

from diana.core.actor import Identity
from diana.core.client_address import LONGEST, Networks, Proxies, ip_from_text
from diana.core.path_readings import PathReading
from diana.core.request import Contradiction, Request

NoteError = Callable[[str, Exception], None]
"""Takes note of why code failed to find what an entry looks at, by the entry's spelling."""


def _ignore_error(spelling: str, error: Exception) -> None:
    """Where nothing is decided."""


class Entry(NamedTuple):
    """One actor and the values of it that are listed."""

    spelling: str
    find: Callable[[Request], str | None]
    """What of the list the request is, in words that may be shown; None if it is not on it."""
    reads_path: bool = False
    kinds: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()
    """As they are compared; of secrets, digests."""


class AllowList(NamedTuple):
    """A list of clients: who is in one of its entries is on it."""

    entries: tuple[Entry, ...]

    def find(self, request: Request, note: NoteError = _ignore_error) -> str | None:
        """What puts the request on the list."""
        for entry in self.entries:
            try:
                found = entry.find(request)
            except Contradiction:
                raise
            except Exception as error:
                note(entry.spelling, error)
                raise
            if found is not None:
                return found
        return None

    def leaves_alone(
        self,
        request: Request,
        readings: tuple[PathReading, ...] | None,
        note: NoteError = _ignore_error,
    ) -> str | None:
        """For `allow`: what puts it on the list, in every reading of its path. Who cannot be told is not on it."""
        try:
            found = [self.find(request, note) for _ in self._read(request, readings)]
        except Exception:
            return None
        return found[0] if found and None not in found else None

    def is_for(
        self,
        request: Request,
        readings: tuple[PathReading, ...] | None,
        note: NoteError = _ignore_error,
    ) -> bool:
        """For `only`: in some reading. Who cannot be told, is: a client could choose to be told badly."""
        try:
            found = [self.find(request, note) for _ in self._read(request, readings)]
        except Exception:
            return True
        return not found or any(one is not None for one in found)

    def denies(
        self,
        request: Request,
        readings: tuple[PathReading, ...] | None,
        note: NoteError,
    ) -> str | None:
        """For `deny`: what puts it on the list, in some reading of its path. A request that contradicts itself is on it, since the
        application may read the listed value; one of which code fails to find who asks is not, and `note` is told."""
        for entry in self.entries:
            several = readings if entry.reads_path else None
            if several is not None and not several:
                return f"{entry.spelling}, since its path may be read in too many ways"
            try:
                for _ in _as_read(request, several):
                    found = entry.find(request)
                    if found is not None:
                        return found
            except Contradiction:
                return f"{entry.spelling}, since it contradicts itself"
            except Exception as error:
                note(entry.spelling, error)
        return None

    def _read(
        self, request: Request, readings: tuple[PathReading, ...] | None
    ) -> Iterable[PathReading | None]:
        reads_path = any(entry.reads_path for entry in self.entries)
        return _as_read(request, readings if reads_path else None)


def _as_read(
    request: Request, readings: tuple[PathReading, ...] | None
) -> Iterator[PathReading | None]:
    """None: as it is."""
    if readings is None:
        yield None
        return
    try:
        for reading in readings:
            request.read_as(reading)
            yield reading
    finally:
        request.read_as(None)


def entry_of_values(
    spelling: str,
    identity: Identity,
    key_from: Callable[[str], str],
    values: Iterable[str],
    reads_path: bool,
    kinds: frozenset[str],
) -> Entry:
    keys = frozenset(map(key_from, values))

    def find(request: Request) -> str | None:
        value = identity(request)
        return spelling if value is not None and key_from(value) in keys else None

    return Entry(spelling, find, reads_path, kinds, keys)


def entry_of_networks(networks: tuple[IPv4Network | IPv6Network, ...], proxies: Proxies) -> Entry:
    """The address itself, behind trusted proxies, not cut to its network: a list may name a single one."""

    looked_in = Networks(networks)

    @lru_cache(8_192)
    def network_of(text: str) -> str | None:
        address = ip_from_text(text)
        found = None if address is None else looked_in.find(address)
        return None if found is None else f"ip {found}"

    def find(request: Request) -> str | None:
        nearest = proxies.nearest(request.peer, request.header_lines("x-forwarded-for"))
        return None if nearest is None else network_of(nearest[:LONGEST])

    return Entry("ip", find, values=frozenset(map(str, networks)))
