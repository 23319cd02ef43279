"""`ip`: the client's address, as far as it can be trusted; IPv6 by its /64."""

from __future__ import annotations

from diana.core.actor import Actor, Identity, RuleContext
from diana.core.client_address import LONGEST, address_from_text, client_of_request
from diana.core.request import Request


def _identity(argument: str, surroundings: RuleContext) -> Identity:
    proxies = surroundings.proxies
    if not proxies.networks:
        return _peer
    return lambda request: client_of_request(request, proxies)


def _peer(request: Request) -> str | None:
    return None if request.peer is None else address_from_text(request.peer[:LONGEST])


ip = Actor(
    _identity,
    same_everywhere=True,
    reads_path=False,
    kinds=frozenset(),
    canonical=address_from_text,
)
