"""Whose address a request comes from, as far as it can be trusted."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diana import ConfigError, Request
from diana.core.client_address import (
    Networks,
    Proxies,
    address_from_text,
    client_of_request,
    network_from_spelling,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("203.0.113.9:8080", "203.0.113.9"),
        (" 203.0.113.9 ", "203.0.113.9"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("2001:DB8:0:1::1", "2001:db8:0:1::/64"),
        ("2001:0db8:0000:0001:0000:0000:0000:0001", "2001:db8:0:1::/64"),
        ("[2001:db8:0:1::1]", "2001:db8:0:1::/64"),
        ("[2001:db8:0:1::1]:443", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("[fe80::1%eth0]:80", "fe80::/64"),
        ("::1", "::/64"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("::FFFF:cb00:7109", "203.0.113.9"),
        ("[::ffff:203.0.113.9]:80", "203.0.113.9"),
        ("", None),
        (" ", None),
        ("unknown", None),
        ("_hidden", None),
        ("localhost", None),
        ("203.0.113", None),
        ("203.0.113.256", None),
        ("203.0.113.09", None),
        ("3405803785", None),
        ("0x7f.0.0.1", None),
        ("2001:db8::1::2", None),
        ("203.0.113.9/24", None),
        ("/run/diana.sock", None),
        ("٢.٠.٠.١", None),
        ("1" * 100_000, None),
    ],
)
def test_an_address_is_told_from_what_a_socket_or_a_header_says(
    text: str, address: str | None
) -> None:
    assert address_from_text(text) == address
    assert client_of_request(Request(peer=text), Proxies()) == address


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
@settings(max_examples=100, derandomize=True, deadline=None)
def test_who_rotates_through_a_64_is_one(one: int, other: int) -> None:
    from ipaddress import IPv6Address

    network = 0x20010DB800000001 << 64
    first, second = (address_from_text(str(IPv6Address(network + host))) for host in (one, other))
    assert first == second == "2001:db8:0:1::/64"
    assert address_from_text("2001:db8:0:2::1") != first


def proxies(*networks: str) -> Proxies:
    return Proxies(network_from_spelling(network) for network in networks)


TRUSTED = proxies("10.0.0.0/8", "192.0.2.1", "2001:db8:ffff::/48")
CLIENT = "203.0.113.9"


@pytest.mark.parametrize(
    "lines",
    [
        [], [""], ["198.51.100.1"], ["198.51.100.1, 10.0.0.1"], ["198.51.100.1", "10.0.0.1"], ["garbage"], [CLIENT], ["10.0.0.1"] * 3,
    ],
)  # fmt: skip
@pytest.mark.parametrize("trusted", [Proxies(), TRUSTED])
def test_what_an_untrusted_peer_says_does_not_count(lines: list[str], trusted: Proxies) -> None:
    headers = [("X-Forwarded-For", line) for line in lines]
    assert client_of_request(Request(headers=headers, peer=CLIENT), trusted) == CLIENT


@pytest.mark.parametrize(
    ("peer", "lines", "client"),
    [
        # One proxy, one hop.
        ("10.0.0.1", [CLIENT], CLIENT),
        ("192.0.2.1", [CLIENT], CLIENT),
        ("192.0.2.2", [CLIENT], "192.0.2.2"),
        ("10.0.0.1:5000", [CLIENT], CLIENT),
        ("::ffff:10.0.0.1", [CLIENT], CLIENT),
        ("2001:db8:ffff:5::1", [CLIENT], CLIENT),
        ("2001:db8:fffe:5::1", [CLIENT], "2001:db8:fffe:5::/64"),
        # How a hop may be written.
        ("10.0.0.1", [f"{CLIENT}:4711"], CLIENT),
        ("10.0.0.1", [f"  {CLIENT}\t"], CLIENT),
        ("10.0.0.1", [f"::ffff:{CLIENT}"], CLIENT),
        ("10.0.0.1", ["2001:db8:0:1::5"], "2001:db8:0:1::/64"),
        ("10.0.0.1", ["[2001:db8:0:1::5]:443"], "2001:db8:0:1::/64"),
        ("10.0.0.1", ["[2001:db8:0:1::5]"], "2001:db8:0:1::/64"),
        # The left part is whatever the client sent.
        ("10.0.0.1", [f"198.51.100.1, {CLIENT}"], CLIENT),
        ("10.0.0.1", [f"10.0.0.7, {CLIENT}"], CLIENT),
        ("10.0.0.1", [f"10.0.0.7, {CLIENT}, 10.0.0.2"], CLIENT),
        ("10.0.0.1", [f"garbage,,, {CLIENT}"], CLIENT),
        ("10.0.0.1", ["198.51.100.1", CLIENT], CLIENT),
        ("10.0.0.1", ["198.51.100.1", f"{CLIENT}, 10.0.0.2", "10.0.0.3"], CLIENT),
        # All hops are trusted: the farthest.
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        # What cannot be read ends the search: what stands to its left might be anybody's.
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["unknown"], "10.0.0.1"),
        ("10.0.0.1", [f"{CLIENT}, unknown"], "10.0.0.1"),
        ("10.0.0.1", [f"{CLIENT}, unknown, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", [f"{CLIENT},"], "10.0.0.1"),
        ("10.0.0.1", [f"{CLIENT}, , 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", [CLIENT, ""], "10.0.0.1"),
        ("10.0.0.1", ["x" * 100_000], "10.0.0.1"),
        ("10.0.0.1", ["," * 10_000], "10.0.0.1"),
    ],
)  # fmt: skip
def test_a_trusted_proxy_is_believed_from_the_right(
    peer: str, lines: list[str], client: str
) -> None:
    headers = [("x-Forwarded-FOR", line) for line in lines]
    assert client_of_request(Request(headers=headers, peer=peer), TRUSTED) == client


@pytest.mark.parametrize("trusted", [Proxies(), TRUSTED])
@pytest.mark.parametrize("peer", [None, "", "unknown", "/run/diana.sock"])
def test_without_a_peer_there_is_no_address_whatever_the_header_says(
    peer: str | None, trusted: Proxies
) -> None:
    request = Request(headers={"X-Forwarded-For": CLIENT}, peer=peer)
    assert client_of_request(request, trusted) is None


@pytest.mark.parametrize("separate", [False, True])
def test_ten_thousand_hops_cost_what_a_few_do(separate: bool) -> None:
    hops = [f"198.51.100.{number % 256}" for number in range(10_000)] + [CLIENT, "10.0.0.2"]
    lines = hops if separate else [", ".join(hops)]
    assert TRUSTED.client("10.0.0.1", lines) == CLIENT
    all_trusted = [f"10.0.{number // 256}.{number % 256}" for number in range(10_000)]
    lines = all_trusted if separate else [", ".join(all_trusted)]
    farthest = TRUSTED.client("10.0.0.1", lines)
    assert farthest == all_trusted[-64], "nobody has more proxies than that"
    begin = process_time()
    for _ in range(100):
        TRUSTED.client("10.0.0.1", lines)
    assert process_time() - begin < 0.5


@given(
    st.lists(st.sampled_from([CLIENT, "10.0.0.2", "unknown", "", "[::1]:5", "198.51.100.1", "1.2.3"]), max_size=6),
    st.sampled_from(["198.51.100.7", "2001:db8:0:9::1"]),
    st.lists(st.sampled_from(["10.0.0.2", "10.9.9.9"]), max_size=3),
)  # fmt: skip
@settings(max_examples=300, derandomize=True, deadline=None)
def test_nothing_that_a_client_sends_changes_its_address(
    sent: list[str], address: str, behind: list[str]
) -> None:
    forwarded = ", ".join([*sent, address, *behind])
    request = Request(headers={"X-Forwarded-For": forwarded}, peer="10.0.0.1")
    assert client_of_request(request, TRUSTED) == address_from_text(address)


@pytest.mark.parametrize("spelling", ["10.0.0.0/8", "10.0.0.1", "::1", "2001:db8::/32"])
def test_a_network_is_an_address_or_a_cidr(spelling: str) -> None:
    assert str(network_from_spelling(spelling)).startswith(spelling.partition("/")[0])


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("2002:cb00:7109::1", "203.0.113.9"),
        ("2002:cb00:7109:ffff::", "203.0.113.9"),
        ("[2002:cb00:7109::1]:8080", "203.0.113.9"),
        ("64:ff9b::203.0.113.9", "203.0.113.9"),
        ("64:ff9b::cb00:7109", "203.0.113.9"),
        ("64:ff9b:0:1::cb00:7109", "64:ff9b:0:1::/64"),
        ("2003:cb00:7109::1", "2003:cb00:7109::/64"),
    ],
)
def test_6to4_and_nat64_are_the_ipv4_address_inside(text: str, address: str) -> None:
    assert address_from_text(text) == address


def test_a_proxy_is_not_trusted_for_the_ipv4_address_inside_its_own() -> None:
    proxies = Proxies([ip_network("10.0.0.0/8")])
    assert not proxies.trusts("2002:a00:1::1")
    assert proxies.client("2002:a00:1::1", ["198.51.100.1"]) == "10.0.0.1"


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("::ffff:203.0.113.9", "203.0.113.9/32"),
        ("::ffff:203.0.113.0/120", "203.0.113.0/24"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::/0", "::/0"),
        ("2001:db8::/32", "2001:db8::/32"),
    ],
)
def test_a_mapped_network_is_the_one_that_clients_are_in(text: str, network: str) -> None:
    assert str(network_from_spelling(text)) == network


def test_a_network_has_no_zone() -> None:
    with pytest.raises(ConfigError, match="'fe80::1%eth0' is no network"):
        network_from_spelling("fe80::1%eth0")


versions = st.sampled_from((32, 128))


@st.composite
def networks(draw: st.DrawFn) -> IPv4Network | IPv6Network:
    bits = draw(versions)
    behind = bits - draw(st.integers(0, bits))
    number = draw(st.integers(0, 2**bits - 1)) >> behind << behind
    return (IPv4Network if bits == 32 else IPv6Network)((number, bits - behind))


@given(st.lists(networks(), max_size=8), st.data())
def test_an_address_is_found_in_the_networks_it_is_in(
    some: list[IPv4Network | IPv6Network], data: st.DataObject
) -> None:
    bits = data.draw(versions)
    numbers = [int(one.network_address) for one in some if one.max_prefixlen == bits] or [0]
    number = data.draw(st.sampled_from(numbers)) ^ data.draw(st.integers(0, 2**16))
    address = (IPv4Address if bits == 32 else IPv6Address)(number % 2**bits)
    found = Networks(some).find(address)
    assert (found is not None) == any(address in one for one in some)
    assert found is None or address in found


def test_ten_thousand_networks_are_looked_up_like_one() -> None:
    """In processor time, of the quickest of several tries: linear search takes a thousand times as long."""
    many = Networks(IPv4Network((10 << 24 | number << 8, 24)) for number in range(10_000))
    one = Networks([IPv4Network("10.0.0.0/24")])
    address = IPv4Address("192.0.2.1")

    def seconds(networks: Networks) -> float:
        begin = process_time()
        for _ in range(2_000):
            networks.find(address)
        return process_time() - begin

    times = [(seconds(many), seconds(one)) for _ in range(20)]
    assert min(many for many, _ in times) < 20 * min(one for _, one in times)
