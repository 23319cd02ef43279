"""`ip`: the client's address, as far as it can be trusted; IPv6 by its /64."""

from __future__ import annotations

from diana.core.actor import Actor, Identity, Surroundings
from diana.core.address import client_of_request


def _identity(argument: str, surroundings: Surroundings) -> Identity:
    proxies = surroundings.proxies
    return lambda request: client_of_request(request, proxies)


ip = Actor(_identity)
