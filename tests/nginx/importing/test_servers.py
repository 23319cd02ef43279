"""Which server's limits a request gets: by Host as in nginx; by port it cannot be told, and a note says so."""

from __future__ import annotations

import pytest

from tests.nginx.importing.conftest import Import

ZONE = "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/m; limit_req_zone $binary_remote_addr zone=b:1m rate=1r/m;\n"
TWO = "limit_req zone=a burst=1 nodelay;"
FIVE = "limit_req zone=b burst=4 nodelay;"


def test_a_redirecting_server_beside_the_real_one(imported: Import) -> None:
    found = imported(
        f"{ZONE} server {{ listen 80; server_name x.example; return 301 https://$host$request_uri; }}\n"
        f"server {{ listen 443 ssl; server_name x.example; {TWO} }}"
    )
    assert found.passed(50, host="other.example") == 2
    assert found.passed(50, host="x.example") == 0
    assert found.noted("host x.example", "line 4")
    assert found.noted("hosts that are not listed", "line 4")


def test_the_default_server_of_a_port_limits_every_host(imported: Import) -> None:
    found = imported(
        f"{ZONE} server {{ listen 80; server_name x.example; {TWO} }} server {{ listen 80; server_name y.example; }}"
    )
    assert found.notes == []
    hosts = ("any.example", "x.example", "Y.example:80")
    assert [found.passed(9, host=host) for host in hosts] == [2, 0, 9]


def test_a_default_server_that_says_so(imported: Import) -> None:
    found = imported(
        f"{ZONE} server {{ server_name x.example; }} server {{ listen 80 default_server; server_name y.example; {TWO} }}"
    )
    assert found.notes == []
    assert [found.passed(9, host=host) for host in ("any.example", "x.example")] == [2, 9]


def test_servers_of_one_name_on_two_ports(imported: Import) -> None:
    found = imported(
        f"{ZONE} server {{ listen 80; server_name x.example; {TWO} }}\nserver {{ listen 443; server_name x.example; {FIVE} }}"
    )
    assert found.noted("host x.example", "rules cannot tell")
    assert found.passed(9, host="x.example") == 2


@pytest.mark.parametrize(
    "listen",
    [
        "listen 80; listen [::]:80;",
        "listen 80; listen 443 ssl default_server;",
        "listen *:80; listen 127.0.0.1:81;",
        "listen 80-82;",
    ],
)
def test_one_server_on_several_sockets_needs_no_note(imported: Import, listen: str) -> None:
    found = imported(
        f"{ZONE.replace('$binary_remote_addr', '$http_x')} server {{ {listen} {TWO} server_name x.example; }}"
    )
    assert found.notes == []
    assert found.blocks() == [("/", None, ["a"])]


def test_servers_with_the_same_limits_share_the_count(imported: Import) -> None:
    found = imported(
        f"{ZONE} {TWO} server {{ listen 80; server_name x.example; }} server {{ listen 81; server_name y.example; }}"
    )
    assert (found.blocks(), found.notes) == ([("/", None, ["a"])], [])


@pytest.mark.parametrize("name", ["*.x.example", ".x.example", "x.*", "~^x"])
def test_a_pattern_of_names_may_be_any_other_host(imported: Import, name: str) -> None:
    found = imported(
        f"{ZONE} server {{ server_name y.example; }} server {{ server_name {name}; {TWO} }} server {{ server_name a.x.example; }}"
    )
    assert found.noted("hosts that are not listed", "pattern of names")
    assert found.passed(9, host="b.x.example") == 2
    assert found.passed(9, host="a.x.example") == 9


def test_a_pattern_takes_a_host_that_another_port_names(imported: Import) -> None:
    found = imported(
        f"{ZONE} server {{ listen 80; server_name a.example; }}\n"
        f"server {{ listen 81; server_name *.example; {TWO} }}\nserver {{ listen 81; server_name b.example; }}"
    )
    assert found.noted("host a.example")
    assert found.passed(9, host="a.example") == 2
    assert found.passed(9, host="b.example") == 9


@pytest.mark.parametrize("name", ["_", '""'])
def test_a_name_that_is_none(imported: Import, name: str) -> None:
    found = imported(f"{ZONE} server {{ server_name {name}; {TWO} }}")
    assert (found.notes, found.passed(9)) == ([], 2)


def test_the_server_name_is_the_same_for_all_requests_to_a_server(imported: Import) -> None:
    zone = "limit_req_zone $server_name zone=a:1m rate=1r/m;"
    found = imported(
        f"{zone} limit_req zone=a burst=1 nodelay; server {{ server_name x.example z.example; }} server {{ server_name y.example; }}"
    )
    assert found.notes == []
    hosts = ("x.example", "z.example", "other.example", "y.example")
    assert [found.passed(9, host=host) for host in hosts] == [2, 0, 0, 2]


def test_a_server_without_a_name_has_an_empty_key(imported: Import) -> None:
    found = imported(
        "limit_req_zone $server_name zone=a:1m rate=1r/m; server { limit_req zone=a; }"
    )
    assert (found.document["limits"], found.notes) == ([], [])


@pytest.mark.parametrize(
    "listen", ["listen 0;", "listen 99999;", "listen x:y;", "listen;", "listen 82-80;"]
)
def test_a_port_that_is_none(imported: Import, listen: str) -> None:
    with pytest.raises(ValueError, match=r"nginx\.conf:4: listen must have"):
        imported(f"{ZONE}server {{ {listen} }}")
