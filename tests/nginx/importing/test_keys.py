"""Whom a zone counts: variables, maps and geo as actors and lists."""

from __future__ import annotations

import pytest

from tests.nginx.importing.conftest import Import, Rules

USE = "limit_req_zone $key zone=a:1m rate=1r/m; server { limit_req zone=a burst=1 nodelay; }"


@pytest.fixture
def keyed(imported: Import) -> Import:
    def translate(definitions: str) -> Rules:
        return imported(f"{definitions}\n{USE}")

    return translate


@pytest.mark.parametrize(
    ("key", "who"),
    [
        ("$binary_remote_addr", {"actor": "ip"}),
        ("$remote_addr", {"actor": "ip"}),
        ("$Remote_Addr", {"actor": "ip"}),
        ("$arg_itemId", {"actor": "query itemId", "missing": "skip"}),
        ("$http_x_tenant_id", {"actor": "header X-Tenant-Id", "missing": "skip"}),
        ("$cookie_sid", {"actor": "cookie sid", "missing": "skip"}),
        ("$uri", {"actor": "path"}),
        ("$host", {"actor": "host", "missing": "together"}),
        ("$server_name", {"actor": "all"}),
        ("all", {"actor": "all"}),
        ("all:$http_x", {"actor": "header X", "missing": "together"}),
        ("$server_name$http_x", {"actor": "header X", "missing": "together"}),
        ("$binary_remote_addr$uri", {"actor": ["ip", "path"]}),
        ("${remote_addr}:$arg_item", {"actor": ["ip", "query item"], "missing": "ip"}),
        ("$http_a$http_b", {"actor": ["header A", "header B"], "missing": "together"}),
        ("$server_name$remote_addr", {"actor": "ip"}),
    ],
)
def test_every_key(imported: Import, key: str, who: dict[str, object]) -> None:
    found = imported(
        f'limit_req_zone "{key}" zone=a:1m rate=30r/m;\nserver {{ server_name x.example; limit_req zone=a; }}'
    )
    numbers = {"name": "a", "unit": "minute", "rpu": 30, "algo": "LB", "burst": 0}
    assert found.only_rule() == numbers | who


@pytest.mark.parametrize(
    ("key", "note"),
    [
        ("$binary_remote_addr", None),
        ("$http_x", None),
        ("$host", None),
        ("$binary_remote_addr$http_x", None),
        ("$remote_addr-$http_x", None),
        ("$remote_addr$http_x", "joins the parts"),
        ("$http_a:$http_b", "joins the parts"),
        ("$http_a:$http_b", "missing: together"),
        ("$host$http_x", "missing: together"),
        ("$uri", "slash at its end"),
        ("$request_uri", "without the query"),
        ("$http_host", "without the port"),
        ("$arg_a", "as it is sent"),
        ("$cookie_a", "as it is sent"),
        ("$ssl_ja3", "no actor for $ssl_ja3"),
        ("$1", "no actor for $1"),
        ("$", "a $ without a name"),
    ],
)
def test_what_differs_in_a_key_is_noted(imported: Import, key: str, note: str | None) -> None:
    found = imported(f'limit_req_zone "{key}" zone=a:1m rate=1r/m;\nserver {{ limit_req zone=a; }}')
    assert found.noted(note) if note else not found.notes, found.notes


def test_a_zone_that_is_not_used_is_not_noted(imported: Import) -> None:
    assert imported("limit_req_zone $ssl_ja3 zone=a:1m rate=1r/m;").notes == []


def test_addresses_of_ipv6_are_noted_where_it_is_listened_to(imported: Import) -> None:
    text = "limit_req_zone %s zone=a:1m rate=1r/m; server { listen %s; limit_req zone=a; }"
    assert imported(text % ("$remote_addr", "[::]:80")).noted("/64")
    assert imported(text % ("$http_x", "[::]:80")).notes == []
    assert imported(text % ("$remote_addr", "80")).notes == []


def test_addresses_behind_a_proxy_are_noted(imported: Import) -> None:
    text = "limit_req_zone $remote_addr zone=a:1m rate=1r/m; set_real_ip_from 10.0.0.0/8; server { limit_req zone=a; }"
    assert imported(text).noted("trusted_proxies")


def test_a_network_within_another(keyed: Import) -> None:
    found = keyed(
        "geo $limited { default 1; 10.0.0.0/8 0; 10.66.0.0/16 1; 10.66.6.0/24 0; }\n"
        'map $limited $key { 0 ""; 1 $binary_remote_addr; }'
    )
    assert found.notes == []
    peers = ("10.66.1.1", "10.1.1.1", "10.66.6.1", "192.0.2.1")
    assert [found.passed(9, peer=peer) for peer in peers] == [2, 9, 9, 2]


def test_a_geo_by_ranges(keyed: Import) -> None:
    found = keyed(
        "geo $limited { ranges; default 1; 10.0.0.0-10.0.0.255 0; 10.0.0.7-10.0.0.9 1; }\n"
        'map $limited $key { default ""; 1 $binary_remote_addr; }'
    )
    assert found.notes == []
    peers = ("10.0.0.1", "10.0.0.8", "10.0.0.10", "10.0.1.0")
    assert [found.passed(9, peer=peer) for peer in peers] == [9, 2, 9, 2]


def test_a_geo_that_limits_some_only(keyed: Import) -> None:
    found = keyed('geo $key { default ""; 192.0.2.0/24 few; }')
    assert found.notes == []
    assert [found.passed(9, peer=peer) for peer in ("192.0.2.1", "192.0.2.2", "10.0.0.1")] == [
        2,
        0,
        9,
    ]


def test_a_geo_without_a_default_limits_nobody_else(keyed: Import) -> None:
    found = keyed("geo $key { 192.0.2.0/24 few; 192.0.2.128/25 more; delete 192.0.2.0/24; }")
    assert [found.passed(9, peer=peer) for peer in ("192.0.2.1", "192.0.2.129")] == [9, 2]


def test_a_value_with_a_dollar_in_a_geo_is_a_text(keyed: Import) -> None:
    found = keyed("geo $key { default $binary_remote_addr; }")
    assert found.only_rule()["actor"] == "all"


@pytest.mark.parametrize(
    "geo",
    [
        "geo $http_x $key { default 1; }",
        "geo $key { proxy 10.0.0.0/8; default 1; }",
    ],
)
def test_a_geo_of_another_address_is_not_translated(keyed: Import, geo: str) -> None:
    found = keyed(geo)
    assert found.document["limits"] == []
    assert found.noted("not translated: the geo of $key looks at")


def test_a_map_exempts_some(keyed: Import) -> None:
    found = keyed('map $http_x_key $key { 7 ""; default $binary_remote_addr; }')
    assert found.notes == []
    assert [found.passed(9, X_Key="7"), found.passed(9, X_Key="8")] == [9, 2]


def test_a_map_limits_some_only(keyed: Import) -> None:
    found = keyed("map $http_x_key $key { 7 $binary_remote_addr; }")
    assert found.notes == []
    assert [found.passed(9, X_Key="7"), found.passed(9, X_Key="8"), found.passed(9)] == [2, 9, 9]


def test_a_map_compares_in_any_case(keyed: Import) -> None:
    found = keyed('map $http_x_key $key { sesame ""; default $binary_remote_addr; }')
    assert found.only_rule()["allow"] == {"header X-Key": ["sesame"]}
    assert found.noted("any case")
    by_host = keyed('map $host $key { A.example ""; default $binary_remote_addr; }')
    assert (by_host.notes, by_host.passed(9, host="a.Example")) == ([], 9)


@pytest.mark.parametrize(
    ("absent", "missing"),
    [('""', "skip"), ("$binary_remote_addr", "ip"), ("anonymous", "together")],
)
def test_a_map_says_what_counts_where_the_header_is_absent(
    keyed: Import, absent: str, missing: str
) -> None:
    found = keyed(f'map $http_x_key $key {{ "" {absent}; 7 ""; default $http_x_key; }}')
    rule = found.only_rule()
    assert (rule["actor"], rule["missing"]) == ("header X-Key", missing)
    assert rule["allow"] == {"header X-Key": ["7"]}


@pytest.mark.parametrize(
    "entries",
    [
        '"" $binary_remote_addr; default "";',
        '"" ""; default $binary_remote_addr;',
        '"" $http_y; default $http_x_key;',
    ],
)
def test_a_map_that_limits_by_the_absence_of_a_header(keyed: Import, entries: str) -> None:
    found = keyed(f"map $http_x_key $key {{ {entries} }}")
    assert found.document["limits"] == []
    assert found.noted("requests without header X-Key")


def test_a_map_with_several_keys(keyed: Import) -> None:
    found = keyed("map $http_plan $key { default $binary_remote_addr; 1 $http_account; }")
    assert [found.passed(9), found.passed(9, Plan="1", Account="x"), found.passed(9, Plan="2")] == [
        2,
        2,
        0,
    ]
    assert found.noted("of several kinds")


def test_a_map_of_a_map(keyed: Import) -> None:
    found = keyed(
        "map $http_plan $class { default 0; 1 vip; 2 vip; 3 staff; }\n"
        'map $class $key { VIP ""; default $binary_remote_addr; staff ""; }'
    )
    assert found.notes == []
    assert [found.passed(9, Plan=plan) for plan in "1230"] == [9, 9, 9, 2]


def test_a_map_that_leads_to_another_one(keyed: Import) -> None:
    found = keyed(
        'map $http_a $key { 1 ""; default $other; }\nmap $http_b $other { 1 ""; default $binary_remote_addr; }'
    )
    assert found.notes == []
    assert [found.passed(9, A="1"), found.passed(9, B="1"), found.passed(9, A="2", B="2")] == [
        9,
        9,
        2,
    ]


def test_a_pattern_that_exempts_some_is_noted(keyed: Import) -> None:
    found = keyed('map $http_user_agent $key { ~*bot ""; default $binary_remote_addr; }')
    assert found.noted("exempts")
    assert found.passed(9, User_Agent="bot") == 2


@pytest.mark.parametrize(
    ("definitions", "why"),
    [
        ("map $http_x $key { ~bot $binary_remote_addr; }", "no plain texts"),
        ("map $http_x $key { hostnames; *.example $binary_remote_addr; }", "no plain texts"),
        ("map $http_a$http_b $key { 1 $binary_remote_addr; }", "not at one variable"),
        ("map $key $key { default $binary_remote_addr; }", "looks at itself"),
        ("map $x $key { default 1; } map $key $x { default 1; }", "looks at itself"),
        ("map $http_x $key { default $key; }", "leads back to itself"),
        ("map $http_x $key { default $other; } map $http_y $other { default $key; }", "leads back to itself"),
        ("map $ssl_ja3 $key { default $binary_remote_addr; }", "no actor for $ssl_ja3"),
        ('map $http_x $key { "${HOME}" ""; default $binary_remote_addr; }', "no list can have"),
        ("map $http_a $key { 1 $other; } map $http_b $other { 2 $binary_remote_addr; }", "two lists"),
        ("map $http_x $y { default $http_z; } map $y $key { default $binary_remote_addr; 1 x; }", "holds others"),
        ("map $http_x $key { default 1; } server { set $key 2; }", "also set"),
    ],
)  # fmt: skip
def test_a_map_that_no_rule_can_follow_is_noted(keyed: Import, definitions: str, why: str) -> None:
    found = keyed(definitions)
    assert found.document["limits"] == []
    assert found.noted("limit_req_zone is not translated", why), found.notes
