from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diana.cli.main import diana
from tests.cli.runner import separate_runner

RULES = """\
limits:
  - url: /
    except: [/healthz]
    rules:
      - {name: total, unit: second, rpu: 50, algo: W}
      - {name: who, actor: header X-User, unit: minute, rpu: 30}
  - url: /orders
    methods: [POST]
    rules:
      - {name: product, actor: query sku, unit: second, rpu: 5, cost: 2, mode: shadow, missing: skip}
"""


def explain(folder: Path, *arguments: str, runner: CliRunner | None = None) -> Result:
    (folder / "rules.yaml").write_text(RULES)
    return (runner or CliRunner()).invoke(
        diana, ["explain", str(folder / "rules.yaml"), *arguments]
    )


def test_it_draws_which_rules_are_asked_and_why(tmp_path: Path) -> None:
    result = explain(tmp_path, "post", "/%6Frders/new?sku=7", "-H", "X-User: alice")
    assert (
        result.output
        == """\
POST /%6Frders/new from 203.0.113.9
│  read as /orders/new
│
├─ 1. total (line 5)
│     url     / covers /orders/new
│     actor   all, counted by the key '='
│     limit   50/second, window: at most 50 at once, on average one every 0.02 s
│     scope   local
│     says    ✓ 49 of 50 left
│
├─ 2. who (line 6)
│     url     / covers /orders/new
│     actor   header x-user, counted by the key '#2bd806c97f0e00af1a1fc3328fa763a9' (a digest)
│     limit   30/minute, token bucket: at most 30 at once, on average one every 2 s
│     scope   local
│     says    ✓ 29 of 30 left
│
├─ 3. product (line 10)
│     url     /orders covers /orders/new, POST only
│     actor   query sku, counted by the key '=7'
│     limit   5/second, token bucket: at most 5 at once, on average one every 0.2 s
│     scope   local, in the shadow: only reported
│     cost    2
│     says    ✓ 3 of 5 left
│
╰─▶ passes
"""
    )
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["GET", "/orders"], "product (line 10): it is for POST only"),
        (
            ["POST", "/orders"],
            "product (line 10): the request has no query sku, and missing is skip",
        ),
        (["POST", "/order"], "product (line 10): its url /orders does not cover /order"),
        (["GET", "/healthz"], "total (line 5): /healthz is excepted"),
        (["GET", "/healthz"], "├─ no rule is asked"),
        (["GET", "/", "--peer", "2001:db8::1"], "key '?2001:db8::/64' (it has none; missing: ip)"),
        (["GET", "/x/../orders"], "│  read as /orders and as /x/../orders"),
        (["GET", "/a/..;%3b\\%5c%2f%2e#%00"], "it may be read in too many ways"),
        (["GET", "https://shop.example/orders?sku=1"], "GET /orders from 203.0.113.9"),
    ],
)
def test_it_says_why_a_rule_is_not_asked(tmp_path: Path, arguments: list[str], said: str) -> None:
    assert said in explain(tmp_path, *arguments).output


def test_a_header_without_a_colon_is_a_usage_error(tmp_path: Path) -> None:
    result = explain(tmp_path, "GET", "/", "-H", "X-User")
    assert result.exit_code == 2
    assert "write -H 'Name: value'" in result.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_for_diana(shell: str) -> None:
    result = CliRunner().invoke(diana, ["completion", shell])
    assert result.exit_code == 0
    assert "_DIANA_COMPLETE" in result.output


def test_a_limit_of_zero(tmp_path: Path) -> None:
    file = tmp_path / "zero.yaml"
    file.write_text("url: /\nrules: [{name: closed, unit: second, rpu: 0}]\n")
    result = CliRunner().invoke(diana, ["explain", str(file), "GET", "/"])
    assert "│     limit   0/second, token bucket: every request is denied\n" in result.output
    assert "╰─▶ is denied\n" in result.output


def test_a_method_that_is_none_is_told_beside_the_answer(tmp_path: Path) -> None:
    result = explain(tmp_path, "GTE", "/orders", runner=separate_runner())
    assert result.exit_code == 0
    assert result.stderr == (
        "warning: METHOD: 'GTE' is no registered method of HTTP; did you mean GET?\n"
    )
    assert explain(tmp_path, "PROPFIND", "/orders", runner=separate_runner()).stderr == ""
