"""Ports that no other program has, nor any other process of tests."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from functools import cache
from itertools import cycle

HOST = "127.0.0.1"
BUS = 10_000
"""A cluster's node talks with the others on its own port plus this."""

_PORTS = range(10_000, 20_000)
"""With their buses all below the range from which the kernel lends ports to connections going out. A port of that range could
be lent while its server is down, and the server would not come back."""
_BLOCK = 250
"""A process of tests takes so many of them for itself. One after the other is used, so a port whose server is down for a while
is not offered to another server before all the rest were."""


def free_ports() -> Iterator[int]:
    """Ports that are free now, each with its bus. Between now and use another program may take one: then try the next."""
    taken = 0
    while taken < _BLOCK:
        port = next(_our_ports())
        if _is_free(port) and _is_free(port + BUS):
            taken = 0
            yield port
        else:
            taken += 1
    raise OSError(f"no free port: all {_BLOCK} around {port} are in use")


def free_port() -> int:
    return next(free_ports())


@cache
def _our_ports() -> Iterator[int]:
    return cycle(range(_our_lease().getsockname()[1], _PORTS.stop)[:_BLOCK])


@cache
def _our_lease() -> socket.socket:
    """Bound as long as this process lives: to the block's first number, as a UDP port, which no server of ours wants."""
    starts = _PORTS[::_BLOCK]
    for start in random.sample(starts, len(starts)):
        lease = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            lease.bind((HOST, start))
        except OSError:
            lease.close()
        else:
            return lease
    raise OSError(
        f"no ports left for this process: all {len(starts)} blocks of {_PORTS.start}-{_PORTS.stop - 1} "
        "are in use, by as many other runs of the tests or by other programs (`ss -ulnp` names them)"
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
