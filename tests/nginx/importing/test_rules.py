"""The rules that come out: each kind of line, and what a person is told of what differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from diana import ConfigError
from diana.nginx.importing import import_nginx
from tests.nginx.importing.conftest import Import

ADDRESS = "limit_req_zone $binary_remote_addr zone=a:10m rate=10r/s;"


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        ("limit_req zone=a;", {"burst": 0}),
        ("limit_req zone=a burst=5;", {"burst": 5}),
        ("limit_req zone=a burst=5 nodelay;", {"burst": 5, "nodelay": True}),
        ("limit_req zone=a burst=5 delay=2;", {"burst": 5, "delay": 2}),
        ("limit_req zone=a burst=5 delay=9;", {"burst": 5, "delay": 5}),
        ("limit_req zone=a burst=5 delay=2 nodelay;", {"burst": 5, "nodelay": True}),
        ("limit_req zone=a burst=5 nodelay delay=2;", {"burst": 5, "delay": 2}),
        ("limit_req zone=a; limit_req_status 429;", {"burst": 0, "status": 429}),
        ("limit_req zone=a; limit_req_dry_run on;", {"burst": 0, "mode": "shadow"}),
        ("limit_req zone=a; limit_req_dry_run off;", {"burst": 0}),
        ("limit_req zone=a; error_page 503 =200 /sorry.html;", {"burst": 0, "status": 200}),
        ("limit_req zone=a; error_page 503 /sorry.html;", {"burst": 0}),
        ("limit_req zone=a; error_page 404 =200 /sorry.html;", {"burst": 0}),
    ],
)
def test_every_option(imported: Import, line: str, numbers: dict[str, object]) -> None:
    rule = {"name": "a", "actor": "ip", "unit": "second", "rpu": 10, "algo": "LB"}
    assert imported(f"{ADDRESS}\nserver {{ {line} }}").only_rule() == rule | numbers


def test_a_zone_without_a_rate_has_one_a_second(imported: Import) -> None:
    rule = imported("limit_req_zone $http_x zone=a:1m;\nlimit_req zone=a;").only_rule()
    assert (rule["unit"], rule["rpu"]) == ("second", 1)


def test_what_a_level_does_not_say_is_that_of_the_level_above(imported: Import) -> None:
    found = imported(
        f"{ADDRESS}\nlimit_req zone=a; limit_req_status 429; limit_conn_zone $host zone=c:1m;\n"
        "server { server_name x.example; limit_req_dry_run on;\n"
        "location = / { } location /in/ { limit_conn c 5; } location = /in { limit_req zone=a burst=1; limit_conn c 5; } }"
    )
    shape = {
        (rule["name"], rule["algo"], rule.get("burst"), rule.get("status"), rule.get("mode"))
        for block in found.document["limits"]
        for rule in block["rules"]
    }
    assert shape == {
        ("a", "LB", 0, 429, "shadow"),
        ("a 2", "LB", 1, 429, "shadow"),
        ("c", "C", None, None, None),
    }


def test_a_location_inside_another_does_otherwise(imported: Import) -> None:
    found = imported(
        f"{ADDRESS}\nlimit_req_zone $uri zone=b:1m rate=1r/s;\n"
        "server { limit_req zone=a;\n"
        "location /api/ { limit_req zone=b; location /api/same { } location /api/own/ { limit_req zone=a burst=1; } }\n"
        "location /static { }\n"
        "location = /exact { limit_req zone=b burst=2; }\n"
        "}"
    )
    assert found.blocks() == [
        ("/", ["/api"], ["a"]),
        ("/api", ["/api/own"], ["b"]),
        ("/exact", ["/exact/*"], ["b 2"]),
        ("/api/own", None, ["a 2"]),
    ]
    assert found.document["limits"][0]["rules"][0]["allow"] == {"path": ["/exact"]}
    assert sum("several places" in note for note in found.notes) == 1


def test_servers_are_told_apart_by_their_names(imported: Import) -> None:
    found = imported(
        f"{ADDRESS}\nlimit_req_zone $http_x zone=b:1m rate=1r/s; limit_req zone=a;\n"
        "server { server_name a.example; }\n"
        "server { server_name B.example c.example; limit_req zone=b; }\n"
        "server { server_name d.example; }"
    )
    whom = [
        {name: block[name] for name in ("allow", "only") if name in block}
        for block in found.document["limits"]
    ]
    assert whom == [
        {"allow": {"host": ["b.example", "c.example"]}},
        {"only": {"host": ["b.example", "c.example"]}},
    ]


def test_clients_with_an_empty_key_are_left_alone(imported: Import) -> None:
    found = imported(
        "geo $limited { default 1; 10.0.0.0/8 0; 192.0.2.7 0; }\n"
        'map $limited $key { 0 ""; 1 $binary_remote_addr; }\n'
        "limit_req_zone $key zone=a:10m rate=5r/s;\n"
        "server { limit_req zone=a burst=10 nodelay; }"
    )
    rule = found.only_rule()
    assert (rule["actor"], rule["allow"]) == ("ip", {"ip": ["10.0.0.0/8", "192.0.2.7"]})


@pytest.mark.parametrize(
    ("http", "note"),
    [
        (f"{ADDRESS}\nserver {{ limit_req zone=b; }}", "no limit_req_zone 'b'"),
        (f"{ADDRESS}\nserver {{ limit_conn a 5; }}", "no limit_conn_zone 'a'"),
        (f"{ADDRESS}\nserver {{ limit_req zone=a; error_page 503 =200 /sorry.html; }}", "/sorry.html"),
        (
            "limit_req_zone $http_x zone=a:1m rate=1r/s;\nunderscores_in_headers on; server { limit_req zone=a; }",
            "underscores_in_headers",
        ),
        (
            f"{ADDRESS}\nlimit_conn_zone $http_x zone=c:1m; limit_req zone=a; limit_conn c 1;",
            "nginx charges limit_req for requests that limit_conn denies",
        ),
        (f"{ADDRESS}\nserver {{ limit_req zone=a; location = / {{ limit_req zone=a burst=5; }} }}", "share one count"),
    ],
)  # fmt: skip
def test_what_is_not_translated_is_noted(imported: Import, http: str, note: str) -> None:
    found = imported(http)
    assert found.noted(note), found.notes
    assert min(found.lines) >= 3


def test_the_rules_limit_as_nginx_would(imported: Import) -> None:
    found = imported(
        f"{ADDRESS}\nserver {{ limit_req zone=a burst=2 nodelay; location = / {{ return 204; }} }}"
    )
    assert [found.passed(5, "/x"), found.passed(5, "/x", peer="192.0.2.2")] == [3, 3]
    assert found.passed(5) == 5


def test_connections_are_slots(imported: Import) -> None:
    found = imported(
        "limit_conn_zone $binary_remote_addr zone=c:10m;\nlimit_conn_zone $server_name zone=s:1m;\n"
        "server { server_name x.example; limit_conn c 5; limit_conn s 100; limit_conn_status 429; limit_conn_dry_run on; }"
    )
    (block,) = found.document["limits"]
    answer = {"mode": "shadow", "status": 429}
    assert block["rules"] == [
        {"name": "c", "actor": "ip", "algo": "C", "most": 5, **answer},
        {"name": "s", "actor": "all", "algo": "C", "most": 100, **answer},
    ]


def test_a_name_that_no_rule_can_have(imported: Import) -> None:
    found = imported(
        f"limit_req_zone $http_x 'zone=\t{'a' * 120}:1m' rate=1r/s;\nlimit_req 'zone=\t{'a' * 120}';"
    )
    assert found.only_rule()["name"] == "?" + "a" * 89


def test_limits_that_no_rules_file_can_have_are_an_error(imported: Import) -> None:
    with pytest.raises(ConfigError, match=r"nginx\.conf: .* must be such that a rules file"):
        imported(
            "limit_req_zone $http_x zone=a:1m rate=1r/s;\n"
            f"map $http_x $y {{ default ''; {''.join(f'{n:0500} 1;' for n in range(3_000))} }}\n"
            "limit_req_zone $y zone=b:1m rate=1r/s; limit_req zone=b;"
        )


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a file to read"):
        import_nginx(str(tmp_path))


def test_a_file_that_is_included_in_http(tmp_path: Path) -> None:
    file = tmp_path / "site.conf"
    file.write_text(f"{ADDRESS}\nserver {{ limit_req zone=a; }}\n", encoding="utf-8")
    (block,) = import_nginx(str(file)).document["limits"]
    assert block["rules"][0]["rpu"] == 10
