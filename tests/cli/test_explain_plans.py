"""What `explain` says of tiers, overrides, lists and charges by outcome."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from diana.cli.main import diana

RULES = """\
identity: {tier: header X-Plan, trust_tier: true}
limits:
  - url: /
    rules:
      - {name: plan, actor: account, unit: minute, rpu: {pro: 600, else: 60}, overrides: {acme: {rpu: 5000}}, charge_on: [401, 5xx]}
      - {name: internal, unit: second, rpu: 5, allow: {ip: [203.0.113.0/24]}}
      - {name: trial, unit: second, rpu: 5, only: {header X-Plan: trial}}
"""


def explain(folder: Path, *arguments: str) -> str:
    (folder / "rules.yaml").write_text(RULES)
    file = str(folder / "rules.yaml")
    return CliRunner().invoke(diana, ["explain", file, "GET", "/", *arguments]).output


@pytest.mark.parametrize(
    ("headers", "limit"),
    [
        (["X-Account-Id: a", "X-Plan: pro"], "600/minute, token bucket: at most 600 at once, on average one every 0.1 s (tier pro)"),
        (["X-Account-Id: a"], "60/minute, token bucket: at most 60 at once, on average one every 1 s (tier else)"),
        (["X-Account-Id: acme"], "5000/minute, token bucket: at most 5000 at once, on average one every 0.012 s (an override)"),
    ],
)  # fmt: skip
def test_it_says_whose_numbers_they_are(tmp_path: Path, headers: list[str], limit: str) -> None:
    text = explain(tmp_path, *(f"-H{header}" for header in headers))
    assert f"limit   {limit}\n" in text
    assert "charge  answers with 401, 5xx; for others it is given back\n" in text


def test_it_says_which_list_spoke(tmp_path: Path) -> None:
    text = explain(tmp_path, "-HX-Account-Id: a")
    assert "internal (line 6): its allow list has the request's ip 203.0.113.0/24\n" in text
    assert "trial (line 7): its only list has not the request's header x-plan\n" in text
    said = json.loads(explain(tmp_path, "-HX-Account-Id: a", "--format", "json"))
    assert [rule["name"] for rule in said["rules"]] == ["plan"]
    assert said["rules"][0]["why_limit"] == "tier else"
    assert said["not_asked"][0]["why"] == "its allow list has the request's ip 203.0.113.0/24"
