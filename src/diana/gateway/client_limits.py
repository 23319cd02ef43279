"""How much of the gateway clients may use, and for how long; how many connections there may be.

Every connection of a client may need one to the upstream, so of the descriptors that the process may have, clients get at most half. When
that is full, an idle connection is closed: the oldest of those that sent no whole request yet, else the one whose last response is the
longest ago. Connections with a request under way stay.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from diana.core.errors import ConfigError
from diana.gateway.read_backlog import Backlog


class ClientLimits(NamedTuple):
    """What a client is waited for, and how many there may be.

    A body may rest for `body_seconds`, and then must have moved on by `body_rate` for each of them, in either direction. Only time counts
    in which the gateway waits for the client.
    """

    head_seconds: float = 60.0
    """For a head, the first and any other."""
    body_seconds: float = 60.0
    """For a request's body to go on, or for an answer to be taken."""
    body_rate: float = 500.0
    """Bytes per second: the least that counts as going on."""
    connections: int | None = None
    """At once; None takes what the limit of descriptors allows."""


DEFAULT = ClientLimits()


RESERVED = 64
"""Descriptors for everything else: the store, the rules, logs, names being looked up."""
LEAST = 8
MOST = 4_096
"""Unless it is told otherwise: more clients than one process can serve need memory, not service."""
SWEEP_SECONDS = 1.0


class ConnectionLimit:
    """The connections of one server."""

    def __init__(self, most: int, linger_seconds: float) -> None:
        self._most = most
        self._linger_seconds = linger_seconds
        self._all: set[asyncio.Transport] = set()
        self._new: dict[asyncio.Transport, None] = {}
        """Without a request yet, in the order in which they came."""
        self._idle: dict[asyncio.Transport, None] = {}
        """With all requests answered, in the order of their last answers."""
        self._closing: dict[asyncio.Transport, float] = {}
        self._sweeping = False
        self.backlog = Backlog()

    def admit(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether there is room, if need be by closing another."""
        if len(self._all) >= self._most:
            oldest = next(iter(self._new or self._idle), None)
            if oldest is None:
                return False
            self.remove(oldest)
            oldest.abort()
        self._all.add(transport)
        self._new[transport] = None
        if not self._sweeping:
            self._sweeping = True
            loop.call_later(SWEEP_SECONDS, self._sweep, loop)
        return True

    def remove(self, transport: asyncio.Transport) -> None:
        self._all.discard(transport)
        self._new.pop(transport, None)
        self._idle.pop(transport, None)
        self._closing.pop(transport, None)

    def mark_busy(self, transport: asyncio.Transport) -> None:
        """It has sent a request."""
        self._new.pop(transport, None)
        self._idle.pop(transport, None)

    def mark_idle(self, transport: asyncio.Transport) -> None:
        """All its requests are answered."""
        if transport in self._all:
            self._idle[transport] = None

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """A connection that is closed waits until all is sent; a client that never reads would keep it for ever."""
        now = loop.time()
        for transport in [each for each in self._all if each.is_closing()]:
            if now - self._closing.setdefault(transport, now) > self._linger_seconds:
                self.remove(transport)
                transport.abort()
        self._sweeping = bool(self._all)
        if self._sweeping:
            loop.call_later(SWEEP_SECONDS, self._sweep, loop)


def most_connections(wanted: int | None = None) -> int:
    """As many as are wanted, or as the limit of descriptors allows."""
    limit = _descriptors()
    if limit is None:
        return wanted or MOST
    possible = max(LEAST, (limit - RESERVED) // 2)
    if wanted is None:
        return min(possible, MOST)
    if wanted > possible:
        raise ConfigError(
            f"{wanted} connections need {_needed(wanted)} descriptors, and the limit is {limit}; raise it: ulimit -n {_needed(wanted)}"
        )
    return wanted


def raise_descriptor_limit(wanted: int | None = None) -> None:
    """As far as so many connections need, and as the hard limit allows; for a process that is the gateway's own."""
    limit = _descriptors()
    needed = _needed(wanted or MOST)
    if limit is None or needed <= limit:
        return
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or needed <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    elif wanted is None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _needed(connections: int) -> int:
    return 2 * connections + RESERVED


def _descriptors() -> int | None:
    """The soft limit; None if there is none."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft
