"""`geo`: what nginx makes of a client's address.

The narrowest network that holds the address decides; `ranges` may lie within each other likewise. A list of a rule has no exceptions, so
what lies within another network and has another value is cut out of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import (
    IPv4Address,
    IPv6Address,
    ip_network,
    summarize_address_range,
)
from typing import NamedTuple

from diana.core.errors import shown
from diana.nginx.importing.configuration import Directive
from diana.nginx.importing.notes import Untranslatable
from diana.nginx.importing.tables import Table

MOST_NETWORKS = 10_000
"""In one list: of more, a rules file would be too long."""
_WORDS = {"ranges": 0, "proxy_recursive": 0, "default": 1, "delete": 1, "proxy": 1}
"""Those that are no addresses, and how many parameters they have."""

Address = IPv4Address | IPv6Address


class Span(NamedTuple):
    """All addresses from one to another."""

    first: Address
    last: Address


def table_of_geo(geo: Directive) -> Table:
    *source, name = geo.arguments(1, 2, "geo $limited { default 1; 10.0.0.0/8 0; }")
    if source and source[0] not in ("$remote_addr", "${remote_addr}"):
        raise Untranslatable(f"the geo of {name} looks at {source[0]}, not at the client's address")
    by_ranges = any(one.name == "ranges" for one in geo.block)
    default = ""
    results: dict[Span, str] = {}
    for one in geo.block:
        count = _WORDS.get(one.name, 1)
        one.arguments(count, count, "an address and its value, such as 10.0.0.0/8 0;")
        if one.name in ("proxy", "proxy_recursive"):
            raise Untranslatable(f"the geo of {name} looks at what proxies forward")
        if one.name == "default":
            default = one.args[0]
        elif one.name == "delete":
            results.pop(_span(one, one.args[0], by_ranges), None)
        elif one.name not in _WORDS:
            results[_span(one, one.name, by_ranges)] = one.args[0]
    groups: dict[str, list[str]] = {}
    for result, network in _disjoint(geo, results, default):
        groups.setdefault(result, []).append(network)
    if sum(map(len, groups.values())) > MOST_NETWORKS:
        raise Untranslatable(f"the geo of {name} has too many networks within each other")
    values = {result: tuple(networks) for result, networks in groups.items()}
    return Table("ip", values, default, default, is_literal=True)


def _span(one: Directive, text: str, by_ranges: bool) -> Span:
    try:
        if by_ranges:
            first, _, last = text.partition("-")
            span = Span(IPv4Address(first), IPv4Address(last))
            if int(span.first) > int(span.last):
                raise ValueError
            return span
        network = ip_network(text, strict=False)
    except ValueError:
        example = "10.0.0.0-10.0.0.255" if by_ranges else "10.0.0.0/8"
        raise one.mistake(
            f"geo must list addresses such as {example} (got {shown(text)})"
        ) from None
    return Span(network.network_address, network.broadcast_address)


class _Nested(NamedTuple):
    span: Span
    result: str
    inner: list[_Nested]


def _disjoint(geo: Directive, results: dict[Span, str], default: str) -> Iterator[tuple[str, str]]:
    """Networks that do not overlap, with their results; those with the default result are left out."""
    for nested in _nested(geo, results):
        yield from _own_networks(nested, default)


def _nested(geo: Directive, results: dict[Span, str]) -> list[_Nested]:
    outermost: list[_Nested] = []
    around: list[_Nested] = []
    ordered = sorted(
        results, key=lambda span: (span.first.version, int(span.first), -int(span.last))
    )
    for span in ordered:
        while around and not _holds(around[-1].span, span.first):
            around.pop()
        if around and not _holds(around[-1].span, span.last):
            raise geo.mistake(
                f"geo must not have ranges that overlap (got {span.first}-{span.last})"
            )
        nested = _Nested(span, results[span], [])
        (around[-1].inner if around else outermost).append(nested)
        around.append(nested)
    return outermost


def _holds(span: Span, address: Address) -> bool:
    same = span.first.version == address.version
    return same and int(span.first) <= int(address) <= int(span.last)


def _own_networks(outermost: _Nested, default: str) -> Iterator[tuple[str, str]]:
    waiting = [outermost]
    while waiting:
        nested = waiting.pop()
        others = _others(nested)
        waiting += others
        if nested.result != default:
            for span in _without(nested.span, [other.span for other in others]):
                for network in summarize_address_range(span.first, span.last):
                    whole = network.prefixlen == network.max_prefixlen
                    yield nested.result, str(network.network_address if whole else network)


def _others(nested: _Nested) -> list[_Nested]:
    """The nearest ones within it that have another result, in order."""
    found: list[_Nested] = []
    waiting = nested.inner[::-1]
    while waiting:
        one = waiting.pop()
        if one.result == nested.result:
            waiting += one.inner[::-1]
        else:
            found.append(one)
    return found


def _without(span: Span, holes: list[Span]) -> Iterator[Span]:
    start = int(span.first)
    for hole in holes:
        if int(hole.first) > start:
            yield _span_of_numbers(span, start, int(hole.first) - 1)
        start = int(hole.last) + 1
    if start <= int(span.last):
        yield _span_of_numbers(span, start, int(span.last))


def _span_of_numbers(span: Span, first: int, last: int) -> Span:
    kind = type(span.first)
    return Span(kind(first), kind(last))
