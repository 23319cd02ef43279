"""`host`: the name the client asked for, without port, in lower case."""

from __future__ import annotations

from diana.core.actor import Actor, Identity, RuleContext
from diana.core.request import Request


def _identity(argument: str, surroundings: RuleContext) -> Identity:
    return _host


def _host(request: Request) -> str | None:
    host = request.header("host")
    if host is None:
        return None
    return _name(host)


def _name(host: str) -> str | None:
    name = host.partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower().rstrip(".") or None


host = Actor(
    _identity,
    same_everywhere=True,
    reads_path=False,
    kinds=frozenset(),
    canonical=_name,
    chosen_by_clients=True,
)
