"""What nginx limits, as rules: each kind of line, and what a person is told of what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from diana import ConfigError, Guard, Request, load_rules
from diana.nginx.importing import Imported, import_nginx
from diana.testing import FakeClock


@pytest.fixture
def imported(tmp_path: Path) -> Any:
    def translate(http: str) -> Imported:
        file = tmp_path / "nginx.conf"
        file.write_text(f"events {{}}\nhttp {{\n{http}\n}}\n", encoding="utf-8")
        found = import_nginx(str(file))
        rules = tmp_path / "diana.yaml"
        rules.write_text(yaml.safe_dump(found.document, sort_keys=False), encoding="utf-8")
        if found.document["limits"]:
            load_rules(str(rules))
        return found

    return translate


def only_rule(found: Imported) -> dict[str, Any]:
    (block,) = found.document["limits"]
    (rule,) = block["rules"]
    return dict(rule)


ADDRESS = "limit_req_zone $binary_remote_addr zone=a:10m rate=10r/s;"


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        ("limit_req zone=a;", {"burst": 0}),
        ("limit_req zone=a burst=5;", {"burst": 5}),
        ("limit_req zone=a burst=5 nodelay;", {"burst": 5, "nodelay": True}),
        ("limit_req zone=a burst=5 delay=2;", {"burst": 5, "delay": 2}),
        ("limit_req zone=a burst=5 delay=9;", {"burst": 5, "delay": 5}),
        ("limit_req zone=a; limit_req_status 429;", {"burst": 0, "status": 429}),
        ("limit_req zone=a; limit_req_dry_run on;", {"burst": 0, "mode": "shadow"}),
        ("limit_req zone=a; error_page 503 =200 /sorry.html;", {"burst": 0, "status": 200}),
        ("limit_req zone=a; error_page 503 /sorry.html;", {"burst": 0}),
        ("limit_req zone=a; error_page 404 =200 /sorry.html;", {"burst": 0}),
    ],
)
def test_every_option(imported: Any, line: str, numbers: dict[str, Any]) -> None:
    rule = {"name": "a", "actor": "ip", "unit": "second", "rpu": 10, "algo": "LB"}
    assert only_rule(imported(f"{ADDRESS}\nserver {{ {line} }}")) == rule | numbers


@pytest.mark.parametrize(
    ("key", "who"),
    [
        ("$binary_remote_addr", {"actor": "ip"}),
        ("$remote_addr", {"actor": "ip"}),
        ("$arg_item", {"actor": "query item", "missing": "skip"}),
        ("$http_x_tenant_id", {"actor": "header X-Tenant-Id", "missing": "skip"}),
        ("$cookie_sid", {"actor": "cookie sid", "missing": "skip"}),
        ("$uri", {"actor": "path"}),
        ("$host", {"actor": "host"}),
        ("$server_name", {"actor": "host"}),
        ("all", {"actor": "all"}),
        ("$binary_remote_addr$uri", {"actor": ["ip", "path"]}),
        ("${remote_addr}:$arg_item", {"actor": ["ip", "query item"], "missing": "ip"}),
        ("$arg_a$arg_b", {"actor": ["query a", "query b"], "missing": "together"}),
        ("$server_name$remote_addr", {"actor": ["ip", "host"]}),
    ],
)
def test_every_key(imported: Any, key: str, who: dict[str, Any]) -> None:
    found = imported(
        f'limit_req_zone "{key}" zone=a:1m rate=30r/m;\nserver {{ server_name x.example; limit_req zone=a; }}'
    )
    numbers = {"name": "a", "unit": "minute", "rpu": 30, "algo": "LB", "burst": 0}
    assert only_rule(found) == numbers | who


def test_a_server_of_several_names_is_one_server(imported: Any) -> None:
    found = imported(
        "limit_req_zone $server_name zone=a:1m rate=1r/s;\n"
        "server { server_name x.example y.example; limit_req zone=a; }"
    )
    assert only_rule(found)["actor"] == "all"


def test_a_location_inside_another_does_otherwise(imported: Any) -> None:
    found = imported(
        f"{ADDRESS}\nlimit_req_zone $uri zone=b:1m rate=1r/s;\n"
        "server { limit_req zone=a;\n"
        "location /api/ { limit_req zone=b; location /api/same { } location /api/own/ { limit_req zone=a burst=1; } }\n"
        "location /static { }\n"
        "location = /exact { limit_req zone=b burst=2; }\n"
        "location @named { limit_req zone=b; }\n"
        "}"
    )
    shape = [
        (block["url"], block.get("except"), [rule["name"] for rule in block["rules"]])
        for block in found.document["limits"]
    ]
    assert shape == [
        ("/", ["/api", "/exact"], ["a"]),
        ("/api", ["/api/own"], ["b"]),
        ("/exact", ["/exact/*"], ["b 2"]),
        ("/api/own", None, ["a 2"]),
    ]
    assert sum("several places" in note.text for note in found.notes) == 2


def test_servers_are_told_apart_by_their_names(imported: Any) -> None:
    found = imported(
        f"{ADDRESS}\nlimit_req zone=a;\n"
        "server { server_name a.example; }\n"
        "server { server_name B.example c.example; limit_req zone=a burst=9; }\n"
        "server { server_name *.d.example; }"
    )
    whom = [
        {name: block[name] for name in ("allow", "only") if name in block}
        for block in found.document["limits"]
    ]
    assert whom == [
        {"allow": {"host": ["b.example", "c.example"]}},
        {"only": {"host": ["b.example", "c.example"]}},
        {"allow": {"host": ["a.example", "b.example", "c.example"]}},
    ]
    assert any("*.d.example is no plain name" in note.text for note in found.notes)


def test_clients_with_an_empty_key_are_left_alone(imported: Any) -> None:
    found = imported(
        "geo $limited { default 1; 10.0.0.0/8 0; 192.0.2.7 0; }\n"
        'map $limited $key { 0 ""; 1 $binary_remote_addr; }\n'
        "limit_req_zone $key zone=a:10m rate=5r/s;\n"
        "server { limit_req zone=a burst=10 nodelay; }"
    )
    rule = only_rule(found)
    assert (rule["actor"], rule["allow"]) == ("ip", {"ip": ["10.0.0.0/8", "192.0.2.7"]})


def test_clients_with_a_header_are_left_alone(imported: Any) -> None:
    found = imported(
        'map $http_x_token $key { sesame ""; default $binary_remote_addr; }\n'
        "limit_req_zone $key zone=a:10m rate=5r/s;\nserver { limit_req zone=a; }"
    )
    assert only_rule(found)["allow"] == {"header X-Token": ["sesame"]}


@pytest.mark.parametrize(
    ("http", "told"),
    [
        ("limit_req_zone $ssl_ja3 zone=a:1m rate=1r/s;\nserver { limit_req zone=a; }", "no actor for $ssl_ja3"),
        (f"{ADDRESS}\nserver {{ limit_req zone=b; }}", "no zone 'b'"),
        (f"{ADDRESS}\nserver {{ limit_req zone=a burst=many; }}", "cannot be read"),
        (f"{ADDRESS}\nserver {{ limit_conn a 5; }}", "no zone 'a'"),
        (f"{ADDRESS}\nserver {{ location ~ [.]php$ {{ limit_req zone=a; }} }}", "is not translated: a url is a prefix"),
        (f"{ADDRESS}\nserver {{ location /api {{ limit_req zone=a; }} }}", "/apix"),
        (f"{ADDRESS}\nserver {{ limit_req zone=a; error_page 503 =200 /sorry.html; }}", "/sorry.html"),
        (f"{ADDRESS}\nunderscores_in_headers on; server {{ limit_req zone=a; }}", "underscores_in_headers"),
        (
            'map $uri $key { default ""; /api $binary_remote_addr; }\n'
            "limit_req_zone $key zone=a:1m rate=1r/s;\nserver { limit_req zone=a; }",
            "leaves most clients alone",
        ),
    ],
)  # fmt: skip
def test_what_is_not_translated_is_told(imported: Any, http: str, told: str) -> None:
    found = imported(http)
    notes = [note for note in found.notes if told in note.text]
    assert notes, found.notes
    assert notes[0].line >= 3


def test_the_rules_limit_as_nginx_would(imported: Any, tmp_path: Path) -> None:
    imported(f"{ADDRESS}\nserver {{ limit_req zone=a burst=2 nodelay; location /free/ {{ }} }}")
    clock = FakeClock(1_700_000_000_000_000)
    guard = Guard(load_rules(tmp_path / "diana.yaml"), clock=clock)
    told = [guard.check(Request("GET", "/x", peer="192.0.2.1")).allowed for _ in range(5)]
    assert told == [True, True, True, False, False]
    clock.advance(0.1)
    assert guard.check(Request("GET", "/x", peer="192.0.2.1")).allowed
    guard.close()


def test_connections_are_places(imported: Any) -> None:
    found = imported(
        "limit_conn_zone $binary_remote_addr zone=c:10m;\nlimit_conn_zone $server_name zone=s:1m;\n"
        "server { server_name x.example; limit_conn c 5; limit_conn s 100; limit_conn_status 429; limit_conn_dry_run on; }"
    )
    (block,) = found.document["limits"]
    answer = {"mode": "shadow", "status": 429}
    assert block["rules"] == [
        {"name": "c", "actor": "ip", "algo": "C", "most": 5, **answer},
        {"name": "s", "actor": "host", "algo": "C", "most": 100, **answer},
    ]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "nginx.conf"
    file.write_text("http { limit_req_zone", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"nginx\.conf"):
        import_nginx(str(file))


def test_a_file_that_is_included_in_http(tmp_path: Path) -> None:
    file = tmp_path / "site.conf"
    file.write_text(f"{ADDRESS}\nserver {{ limit_req zone=a; }}\n", encoding="utf-8")
    assert only_rule(import_nginx(str(file)))["rpu"] == 10
