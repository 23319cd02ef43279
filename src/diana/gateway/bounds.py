"""How much of the gateway one client may keep for itself, and for how long."""

from __future__ import annotations

from typing import NamedTuple

MOST_WAITING = 16
"""Requests that were read on one connection while the one before them is answered; what comes behind them stays unread."""


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
