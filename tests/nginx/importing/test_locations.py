"""Which location's limits a path gets: as in nginx, or with a note."""

from __future__ import annotations

import pytest

from tests.nginx.importing.conftest import Import

ZONES = "limit_req_zone $binary_remote_addr zone=all:1m rate=1r/m; limit_req_zone $binary_remote_addr zone=own:1m rate=1r/m;\n"
ALL = "limit_req zone=all burst=4 nodelay;"
OWN = "limit_req zone=own burst=1 nodelay;"


def test_the_location_of_everything(imported: Import) -> None:
    found = imported(f"{ZONES} server {{ location / {{ {ALL} }} }}")
    assert found.blocks() == [("/", None, ["all"])]
    assert found.notes == []


@pytest.mark.parametrize("outer", ["{}", "location / {{ {} }}", "location ^~ / {{ {} }}"])
@pytest.mark.parametrize("inner", ["location /login/", "location ^~ /login/"])
def test_a_prefix_replaces_what_is_around_it(imported: Import, outer: str, inner: str) -> None:
    found = imported(f"{ZONES} server {{ {outer.format(ALL)} {inner} {{ {OWN} }} }}")
    assert found.blocks() == [("/", ["/login"], ["all"]), ("/login", None, ["own"])]
    assert found.noted("/login/ does not match /login in nginx")
    assert (found.passed(9, "/login/x"), found.passed(9, "/x")) == (2, 5)


def test_an_exact_location_is_a_path_that_the_rule_around_it_leaves_alone(imported: Import) -> None:
    found = imported(f"{ZONES} server {{ location / {{ {ALL} }} location = /login {{ {OWN} }} }}")
    assert found.noted("= /login does not match /login/ in nginx")
    assert (found.passed(9, "/login"), found.passed(9, "/login/x"), found.passed(9)) == (2, 5, 0)


def test_the_exact_root(imported: Import) -> None:
    found = imported(f"{ZONES} server {{ {ALL} location = / {{ {OWN} }} }}")
    assert found.notes == []
    assert (found.passed(9), found.passed(9, "/x")) == (2, 5)


@pytest.mark.parametrize("turned", [False, True])
def test_an_exact_and_a_prefix_location_of_one_path(imported: Import, turned: bool) -> None:
    lines = [f"location /login/ {{ {ALL} }}", f"location = /login {{ {OWN} }}"]
    found = imported(f"{ZONES} server {{ {' '.join(lines[:: -1 if turned else 1])} }}")
    assert found.noted("= /login and location /login/ are one path here")
    assert found.passed(9, "/login/x") == 5
    found = imported(f"{ZONES} server {{ {' '.join(lines)} }}")
    assert found.passed(9, "/login") == 2


def test_an_exact_and_a_prefix_location_that_limit_alike_are_one(imported: Import) -> None:
    found = imported(
        f"{ZONES} server {{ location /login/ {{ {OWN} }} location = /login {{ {OWN} }} }}"
    )
    assert found.blocks() == [("/login", None, ["own"])]
    assert found.notes == []


def test_exact_locations_of_one_zone_are_one_counter(imported: Import) -> None:
    found = imported(
        f"{ZONES} server {{ location = /a/x {{ {OWN} }} location = /a/y {{ {OWN} }} }}"
    )
    assert found.passed(1, "/a/x") + found.passed(9, "/a/y") + found.passed(9, "/a/x") == 2
    assert found.passed(9, "/a") == 9
    assert not found.noted("several places")


def test_a_zone_that_is_used_beside_another_is_one_counter(imported: Import) -> None:
    found = imported(f"{ZONES} server {{ {ALL} location = / {{ {ALL} {OWN} }} }}")
    assert found.blocks() == [("/", None, ["all"]), ("/", ["/*"], ["own"])]
    assert found.notes == []
    assert [found.passed(9), found.passed(9, "/x")] == [2, 3]


def test_nested_locations(imported: Import) -> None:
    found = imported(
        f"{ZONES} server {{ {ALL} location /a/ {{ location /a/b/ {{ {OWN} }} }} location = /a/b {{ {OWN} }} }}"
    )
    assert found.notes == []
    assert [found.passed(9, path) for path in ("/a/b", "/a", "/a/x")] == [2, 5, 0]


def test_a_nested_location_that_limits_as_the_outermost_counts_by_itself(imported: Import) -> None:
    found = imported(
        f"{ZONES} server {{ {ALL} location /a/ {{ {OWN} location /a/b/ {{ {ALL} }} }} }}"
    )
    assert found.blocks() == [
        ("/", ["/a"], ["all"]),
        ("/a", ["/a/b"], ["own"]),
        ("/a/b", None, ["all 2"]),
    ]
    assert found.noted("zone all is used in several places")


def test_a_prefix_within_a_segment(imported: Import) -> None:
    found = imported(f"{ZONES} server {{ location /api {{ {OWN} }} }}")
    assert found.notes == [
        "location /api also matches /apix in nginx; the url /api covers whole segments only"
    ]
    alike = imported(f"{ZONES} server {{ {OWN} location /api {{ {OWN} }} }}")
    assert (alike.blocks(), alike.notes) == ([("/", None, ["own"])], [])


@pytest.mark.parametrize("modifier", ["~", "~*"])
def test_a_regular_expression_with_limits_of_its_own(imported: Import, modifier: str) -> None:
    found = imported(f"{ZONES} server {{ {ALL} location {modifier} [.]php$ {{ {OWN} }} }}")
    assert found.noted(f"location {modifier} [.]php$ is not translated")
    assert found.passed(9, "/x.php") == 5


def test_a_regular_expression_that_limits_as_some_locations_but_not_as_others(
    imported: Import,
) -> None:
    text = f"{ZONES} server {{ {ALL} location %s {{ {OWN} }} location = /x {{ {OWN} }} location ~ [.]php$ {{ }} }}"
    assert imported(text % "/x/").noted("[.]php$ is not translated")
    assert imported(text % "^~ /x/").notes == []


def test_nested_regular_expressions_do_not_concern_paths_elsewhere(imported: Import) -> None:
    found = imported(
        f"{ZONES} server {{ {OWN} location /a/ {{ location ~ [.]php$ {{ }} }} location = / {{ {ALL} }} }}"
    )
    assert found.notes == []


@pytest.mark.parametrize("glued", ["=/login", "^~/login/", "~^/login", "~*^/login"])
def test_a_modifier_without_a_blank(imported: Import, glued: str) -> None:
    apart = (
        glued.replace("/", " /", 1)
        if "~^" not in glued and "~*" not in glued
        else glued.replace("^", " ^", 1)
    )
    one = imported(f"{ZONES} server {{ location {glued} {{ {OWN} }} }}")
    other = imported(f"{ZONES} server {{ location {apart} {{ {OWN} }} }}")
    assert (one.document, one.notes) == (other.document, other.notes)


@pytest.mark.parametrize(
    ("path", "covered", "free"),
    [
        ("/api/*", "/api/*", "/api/users"),
        ("/u/{x}", "/u/{x}", "/u/7"),
        ("/a*b", "/a*b", "/axb"),
        ("/100%", "/100%25", "/100"),
        ("/%61", "/%2561", "/a"),
        ("/a b?c#d", "/a%20b%3Fc%23d", "/a"),
        ("/é", "/%C3%A9", "/e"),
    ],
)
def test_a_location_is_literal(imported: Import, path: str, covered: str, free: str) -> None:
    found = imported(f'{ZONES} server {{ location = "{path}" {{ {OWN} }} }}')
    assert (found.passed(9, covered), found.passed(9, free)) == (2, 9)


@pytest.mark.parametrize("path", ["/a;b", "/a//b", "/a/../b", "/a/./b", "/a\\\\b"])
def test_a_location_that_rules_read_in_several_ways(imported: Import, path: str) -> None:
    found = imported(f'{ZONES} server {{ {ALL} location "{path}" {{ {OWN} }} }}')
    assert found.noted("is not translated", "several ways")
    assert found.blocks() == [("/", None, ["all"])]


def test_what_answers_before_it_is_counted_is_not_limited(imported: Import) -> None:
    found = imported(
        f"{ZONES} server {{ {ALL} location = / {{ return 200 ok; }} location = /in {{ internal; }} location /in/ {{ internal; }} }}"
    )
    assert found.notes == []
    assert [found.passed(9, path) for path in ("/", "/in", "/in/x", "/x")] == [9, 9, 9, 5]


def test_what_is_within_an_internal_location_is_internal(imported: Import) -> None:
    found = imported(f"{ZONES} server {{ location / {{ internal; location = / {{ {ALL} }} }} }}")
    assert found.document["limits"] == []
    assert found.noted("location = / is not translated")


def test_a_redirect_to_the_path_with_a_slash_is_noted(imported: Import) -> None:
    found = imported(f"{ZONES} server {{ {OWN} location /x/ {{ proxy_pass http://b; }} }}")
    assert found.noted("/x/ does not match /x in nginx")


@pytest.mark.parametrize(
    "directive",
    [
        "rewrite ^/old /login/ last;",
        "rewrite ^/old https://x.example permanent;",
        "if ($http_x) { return 403; }",
        "location /x/ { try_files $uri /login/x; }",
        "error_page 404 /login/x;",
        "index login/x;",
    ],
)
def test_what_moves_a_request_on_is_noted(imported: Import, directive: str) -> None:
    found = imported(
        f"{ZONES} server {{ {directive} location /login/ {{ {OWN} }} location = /login {{ {OWN} }} }}"
    )
    assert len(found.notes) == 1
    assert found.noted(directive.split()[0] if "try_files" not in directive else "try_files")


def test_what_moves_a_request_on_to_the_same_limits_is_not_noted(imported: Import) -> None:
    found = imported(
        f"{ZONES} server {{ {ALL} rewrite ^/old /new last; location /x/ {{ try_files $uri @app; }} location @app {{ }} }}"
    )
    assert found.notes == []


def test_what_moves_on_requests_with_an_empty_key_is_noted(imported: Import) -> None:
    text = "limit_req_zone %s zone=k:1m rate=1r/m; limit_req_zone $host zone=h:1m rate=1r/m; limit_req zone=k; server {"
    text += "location = / { limit_req zone=h; } location /x/ { try_files $uri /; } }"
    assert imported(text % "$http_key").noted("try_files")
    assert imported(text % "$binary_remote_addr").notes == []


def test_a_named_location_with_limits_of_its_own_is_noted(imported: Import) -> None:
    found = imported(f"{ZONES} server {{ location / {{ {ALL} }} location @app {{ {OWN} }} }}")
    assert found.noted("location @app is not translated")
    internal = imported(
        f"{ZONES} server {{ location = /in {{ internal; {OWN} }} location / {{ {ALL} }} }}"
    )
    assert internal.noted("location = /in is not translated")


def test_merge_slashes(imported: Import) -> None:
    text = f"{ZONES} merge_slashes off; server {{ {ALL} location = / {{ %s }} }}"
    assert imported(text % OWN).noted("merge_slashes off")
    assert imported(text % "").notes == []
