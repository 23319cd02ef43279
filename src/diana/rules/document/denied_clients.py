"""`allow` of clients that `deny` denies first."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, ip_network

from diana.core.allow_lists import AllowList, Entry
from diana.core.policy import Warning
from diana.core.rule import Rule


def warnings_of_denied_clients(rules: list[Rule]) -> Iterator[Warning]:
    """Values are named only where they are no secret."""
    told: set[tuple[int, str]] = set()
    for rule in rules:
        if rule.position is None or not (rule.allow and rule.deny):
            continue
        for allowed in _entries(rule.allow):
            for denied in _entries(rule.deny):
                said = _both(allowed, denied) if allowed.spelling == denied.spelling else None
                if said is not None and (rule.block, said) not in told:
                    told.add((rule.block, said))
                    yield Warning(
                        f"allow and deny both have {said}, and deny wins; remove it from one of them",
                        rule.position,
                    )


def _entries(rosters: tuple[AllowList, ...]) -> Iterator[Entry]:
    for roster in rosters:
        yield from roster.entries


def _both(allowed: Entry, denied: Entry) -> str | None:
    if allowed.spelling == "ip":
        networks = [ip_network(value) for value in sorted(denied.values)]
        covered = [value for value in sorted(allowed.values) if _is_in(ip_network(value), networks)]
        return f"ip {', '.join(covered)}" if covered else None
    number = len(allowed.values & denied.values)
    if not number:
        return None
    return (
        f"a value of {allowed.spelling}"
        if number == 1
        else f"{number} values of {allowed.spelling}"
    )


def _is_in(network: IPv4Network | IPv6Network, others: list[IPv4Network | IPv6Network]) -> bool:
    return any(
        network.version == other.version and network.subnet_of(other)  # type: ignore[arg-type]
        for other in others
    )
