"""Whose address? The socket's, or what a trusted proxy says it was.

IPv4 in IPv6 clothes (mapped, 6to4, NAT64) is undressed first; then IPv6 is cut to its /64, which is what one household or one attacker
owns. Whether a proxy is trusted is asked of the address as it is: no client gets into 10.0.0.0/8 by way of 2002:a00:1::.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from diana.core.errors import ConfigError
from diana.core.request import Request

NAT64 = IPv6Network("64:ff9b::/96")
LONGEST = 64
"""No address is longer; what is, is cut before it is remembered."""
_MAPPED_BITS = 96
"""Before an IPv4 address that is mapped into IPv6."""
MOST_HOPS = 64
"""Hops looked at, from the right: no chain of proxies is longer."""


@lru_cache(8_192)
def address_from_text(text: str) -> str | None:
    """`203.0.113.9`, or `2001:db8:0:1::/64`; None if it is no address. A port or a zone is dropped.

    Whoever calls it cuts to LONGEST what a client may have chosen: it is remembered.
    """
    address = ip_from_text(text)
    if address is None:
        return None
    if isinstance(address, IPv6Address):
        inner = _ipv4_inside(address)
        return str(inner or IPv6Network((int(address) >> 64 << 64, 64)))
    return str(address)


def client_of_request(request: Request, proxies: Proxies) -> str | None:
    """Who sent it, as far as it can be trusted."""
    if not proxies.networks:
        return None if request.peer is None else address_from_text(request.peer[:LONGEST])
    return proxies.client(request.peer, request.header_lines("x-forwarded-for"))


class Proxies:
    """Those whose X-Forwarded-For counts."""

    def __init__(self, networks: Iterable[IPv4Network | IPv6Network] = ()) -> None:
        self.networks = tuple(networks)
        self._looked_in = Networks(self.networks)
        self._trusts = lru_cache(8_192)(self._looked_up)

    def client(self, peer: str | None, forwarded: Sequence[str]) -> str | None:
        """Read from the right: the first hop that is not trusted is the client."""
        hop = self.nearest(peer, forwarded)
        return None if hop is None else address_from_text(hop)

    def trusts(self, peer: str | None) -> bool:
        """Whether what it says of others counts."""
        return bool(self.networks) and peer is not None and self._trusts(peer[:LONGEST])

    def nearest(self, peer: str | None, forwarded: Sequence[str]) -> str | None:
        """The client as it is written, not cut to a network."""
        if peer is None:
            return None
        peer = peer[:LONGEST]
        if not self._trusts(peer):
            return peer
        nearest = peer
        for hop in reversed(_hops(forwarded)):
            if address_from_text(hop) is None:
                break
            nearest = hop
            if not self._trusts(hop):
                break
        return nearest

    def _looked_up(self, text: str) -> bool:
        address = ip_from_text(text)
        return address is not None and self._looked_in.find(address) is not None


def network_from_spelling(text: str) -> IPv4Network | IPv6Network:
    """IPv4 mapped into IPv6 is undressed, as addresses are: else no client would ever be in it."""
    try:
        network = ip_network(text)
        if isinstance(network, IPv6Network):
            if "%" in text:
                raise ValueError("addresses are compared without their zone")
            mapped = network.network_address.ipv4_mapped
            if mapped is not None and network.prefixlen >= _MAPPED_BITS:
                return IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))
    except ValueError:
        raise ConfigError(
            f"{text!r} is no network; write an address or a CIDR such as 10.0.0.0/8 (host bits zero)"
        ) from None
    return network


class Networks:
    """Looked up by their lengths, of which there are few: ten thousand networks cost no more than one."""

    def __init__(self, networks: Iterable[IPv4Network | IPv6Network]) -> None:
        self._by_length: dict[tuple[int, int], dict[int, IPv4Network | IPv6Network]] = {}
        """By version and bits behind the prefix: the prefix, and whose it is."""
        for network in networks:
            behind = network.max_prefixlen - network.prefixlen
            alike = self._by_length.setdefault((network.version, behind), {})
            alike[int(network.network_address) >> behind] = network

    def find(self, address: IPv4Address | IPv6Address) -> IPv4Network | IPv6Network | None:
        """One that the address is in."""
        number, version = int(address), address.version
        for (other, behind), alike in self._by_length.items():
            if other == version:
                found = alike.get(number >> behind)
                if found is not None:
                    return found
        return None


def _hops(forwarded: Sequence[str]) -> list[str]:
    hops: list[str] = []
    for line in reversed(forwarded):
        if len(hops) >= MOST_HOPS:
            break
        hops = line.rsplit(",", MOST_HOPS)[-MOST_HOPS:] + hops
    return [hop.strip()[:LONGEST] for hop in hops[-MOST_HOPS:]]


def ip_from_text(text: str) -> IPv4Address | IPv6Address | None:
    """Whole, not cut; a port or a zone is dropped, IPv4 in IPv6 clothes is undressed."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _ipv4_inside(address: IPv6Address) -> IPv4Address | None:
    """The host behind a translator: a household has one IPv4 address, and with it a whole /48 of 6to4."""
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.sixtofour
