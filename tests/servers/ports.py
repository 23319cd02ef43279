"""Ports that nobody has."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

HOST = "127.0.0.1"
BUS = 10_000
"""A cluster's node talks with the others on its own port plus this."""

_PORTS = range(10_000, 20_000)
"""With their buses all below the range from which the kernel lends ports to connections going out. A port of that range could
be lent while its server is down, and the server would not come back."""


def free_ports() -> Iterator[int]:
    """Ports that are free now, each with its bus. Between now and use somebody may take one: then try the next."""
    while True:
        port = random.choice(_PORTS)
        if _is_free(port) and _is_free(port + BUS):
            yield port


def free_port() -> int:
    return next(free_ports())


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
