"""`peek`, `reset`, `unblock` and `override`: one client's counter in a store, and what nodes make of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diana import Guard, Request
from diana.cli.main import diana
from diana.rules.loading import rules_from_bytes
from tests.servers.cluster import Cluster
from tests.servers.server import Server
from tests.servers.waiting import until

RULES = """
- url: /
  rules:
    - {name: "logins | 100% {x}", actor: account, unit: hour, rpu: 3, algo: SL, scope: global}
    - {name: by both, actor: [ip, account], unit: hour, rpu: 9, scope: global}
    - {name: together, unit: hour, rpu: 100, algo: SW, slices: 6, scope: global}
"""
NAME = "logins | 100% {x}"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(diana, arguments)


def said(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def request(account: str = "alice") -> Request:
    return Request("POST", "/", {"X-Account-Id": account}, peer="203.0.113.9")


@pytest.fixture
def guard(redis7: Server) -> Iterator[Guard]:
    redis7.ask("FLUSHALL")
    guard = Guard(rules_from_bytes(RULES.encode()), f"{redis7.url}?budget=10s")
    guard.check(request("somebody else"))
    until(lambda: redis7.ask("KEYS", "diana:limit:*"), "the rules are published")
    for rule in ((NAME, "x"), ("by both", "x", "10.0.0.1"), ("together",)):
        until(lambda: run("peek", redis7.url, *rule).exit_code == 0, "all of them")  # noqa: B023
    yield guard
    guard.close()


def remaining(url: str, *which: str) -> int:
    found: int = json.loads(said("peek", url, *which, "--format", "json"))["remaining"]
    return found


def test_places(redis7: Server) -> None:
    redis7.ask("FLUSHALL")
    rules = "{url: /, rules: [{name: jobs, actor: account, algo: C, most: 2, scope: global}]}"
    guard = Guard(rules_from_bytes(rules.encode()), f"{redis7.url}?budget=10s")
    assert guard.check(request())
    until(lambda: run("peek", redis7.url, "jobs", "alice").exit_code == 0, "it is published")
    assert remaining(redis7.url, "jobs", "alice") == 1
    assert guard.check(request())
    assert "denied, all slots are taken" in said("peek", redis7.url, "jobs", "alice")
    told = json.loads(said("peek", redis7.url, "jobs", "alice", "--format", "json"))
    assert told["retry_after"] is None
    assert "jobs: 3 at once for alice" in said(
        "override", redis7.url, "jobs", "alice", "--rpu", "3"
    )
    assert "3 at once, an override" in said("peek", redis7.url, "jobs", "alice")
    said("override", redis7.url, "jobs", "alice", "--remove")
    assert "unblocked" in said("unblock", redis7.url, "jobs", "alice")
    assert remaining(redis7.url, "jobs", "alice") == 2
    guard.close()


def test_where_a_client_stands(redis7: Server, guard: Guard) -> None:
    guard.check(request())
    assert remaining(redis7.url, NAME, "alice") == 2, "one was charged, and the look charges none"
    guard.check(request())
    guard.check(request())
    text = said("peek", redis7.url, NAME, "alice")
    assert "✗ denied, retry after 3" in text
    assert remaining(redis7.url, "together") == 96


def test_a_combination_is_written_in_the_order_in_which_it_is_shown(
    redis7: Server, guard: Guard
) -> None:
    guard.check(request())
    until(lambda: run("peek", redis7.url, "by both", "a", "10.0.0.1").exit_code == 0, "published")
    assert remaining(redis7.url, "by both", "alice", "203.0.113.9") == 8
    assert run("peek", redis7.url, "by both", "alice").exit_code == 2
    assert run("peek", redis7.url, "by both", "alice", "no address").exit_code == 2


def test_a_client_that_is_unblocked_passes_on_every_node(redis7: Server, guard: Guard) -> None:
    """Each node remembers the denial for an hour; all forget it within two seconds."""
    other = Guard(rules_from_bytes(RULES.encode()), f"{redis7.url}?budget=10s")
    for _ in range(3):
        assert guard.check(request())
    assert not guard.check(request())
    assert not other.check(request())
    assert "not denied under 3/hour, 3 left; nothing was changed" in said(
        "unblock", redis7.url, NAME, "bob"
    )
    assert "unblocked; under 3/hour it was denied for another 3" in said(
        "unblock", redis7.url, NAME, "alice"
    )
    until(lambda: bool(other.peek(request())), "the counter is new")
    until(lambda: bool(other.check(request())), "the other node has heard of it")
    until(lambda: bool(guard.check(request())), "this node too")
    assert said("reset", redis7.url, NAME, "alice") == f"{NAME}: forgotten\n"
    assert f"{NAME}: nothing was counted in namespace 'diana' of redis://" in said(
        "reset", redis7.url, NAME, "alice"
    )
    other.close()


def test_an_override_reaches_every_node_and_keeps_the_count(redis7: Server, guard: Guard) -> None:
    for _ in range(3):
        assert guard.check(request())
    assert not guard.check(request())
    text = said("override", redis7.url, NAME, "alice", "--rpu", "10", "--for", "1h")
    assert text.startswith(f"{NAME}: 10/hour for alice, until 2")
    until(lambda: guard.peek(request()).decisions[0].limit == 10, "the node has heard of it")
    assert guard.check(request()).decisions[0].remaining == 6
    assert guard.check(request("bob")).decisions[0].limit == 3
    assert "an override" in said("peek", redis7.url, NAME, "alice")
    late = Guard(rules_from_bytes(RULES.encode()), f"{redis7.url}?budget=10s")
    until(lambda: late.peek(request()).decisions[0].limit == 10, "a later node reads all")
    late.close()
    assert said("override", redis7.url, NAME, "alice", "--remove") == f"{NAME}: removed\n"
    until(lambda: guard.peek(request()).decisions[0].limit == 3, "it has heard of that too")
    assert not guard.check(request())
    again = said("override", redis7.url, NAME, "alice", "--remove")
    assert again == f"{NAME}: there was no override\n"


def test_a_store_that_was_emptied_has_no_overrides(redis7: Server, guard: Guard) -> None:
    said("override", redis7.url, NAME, "alice", "--rpu", "10")
    until(lambda: guard.peek(request()).decisions[0].limit == 10, "the node has heard of it")
    redis7.ask("FLUSHALL")
    until(lambda: guard.peek(request()).decisions[0].limit == 3, "and of that")


def test_entries_that_have_ended_are_swept_away(redis7: Server, guard: Guard) -> None:
    said("override", redis7.url, NAME, "old", "--rpu", "10", "--for", "1ms")
    until(
        lambda: (
            said("override", redis7.url, NAME, "new", "--rpu", "10")
            and redis7.ask("HLEN", "diana:{overrides}") == 1
        ),
        "the old one is gone",
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["peek", "{url}", "by bot", "alice"],
            1,
            "there is no rule 'by bot'; did you mean 'by both'?",
        ),
        (["peek", "{url}", NAME], 2, "the rule counts by account; write a VALUE for each"),
        (["peek", "{url}", NAME, "a", "b"], 2, "'b' is one VALUE too many"),
        (["override", "{url}", NAME, "a"], 2, "write --rpu N, or --remove"),
        (["override", "{url}", NAME, "a", "--rpu", "5", "--for", "soon"], 2, "is no duration"),
        (["override", "{url}", NAME, "a", "--rpu", "5", "--for", "inf"], 2, "'inf' is no duration"),
        (["override", "{url}", NAME, "a", "--rpu", "nan"], 2, "'nan' is not a valid integer"),
        (["override", "{url}", NAME, "a", "--rpu", "5.0"], 2, "'5.0' is not a valid integer"),
        (["override", "{url}", NAME, "a", "--rpu", "-1"], 2, "-1 is not in the range"),
        (["override", "{url}", NAME, "a", "--rpu", "9" * 13], 2, "is not in the range"),
        (["override", "{url}", NAME, "a", "--rpu", "5", "--burst", "-1"], 2, "is not in the range"),
        (
            ["override", "{url}", NAME, "a", "--rpu", "5", "--burst", "9" * 13],
            2,
            "not in the range",
        ),
        (["override", "{url}", NAME, "a", "--rpu", "5", "--burst", "2"], 1, "has no burst"),
        (["reset", "redis://127.0.0.1:1", NAME, "a"], 1, "refused"),
        (
            ["reset", "nonsense", NAME, "a"],
            2,
            "which store? write the store's URL as the first argument, such as redis://localhost:6379, or set DIANA_STORE",
        ),
        (
            ["reset", "localhost:6379", NAME, "a"],
            2,
            "write its scheme, such as redis://localhost:6379",
        ),
        (["reset", "nonsense://host", NAME, "a"], 1, "is no store of this kind"),
    ],
)
def test_what_goes_wrong_is_said(
    redis7: Server, guard: Guard, arguments: list[str], code: int, message: str
) -> None:
    result = run(*(one.replace("{url}", redis7.url) for one in arguments))
    assert (result.exit_code, message in result.output) == (code, True), result.output


def test_a_rules_file_names_rules_that_no_node_has_asked(redis7: Server, tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(RULES)
    assert "✓ 3 of 3 left" in said("peek", redis7.url, NAME, "alice", "--rules", str(file))
    assert run("peek", redis7.url, "nobody", "a", "--rules", str(file)).exit_code == 1


def test_in_a_cluster_every_server_is_looked_at(cluster: Cluster) -> None:
    guard = Guard(rules_from_bytes(RULES.encode()), f"{cluster.url}?budget=10s")
    for _ in range(3):
        assert guard.check(request("carol"))
    assert not guard.check(request("carol"))
    until(lambda: run("peek", cluster.url, NAME, "carol").exit_code == 0, "it is published")
    assert "✗ denied" in said("peek", cluster.url, NAME, "carol")
    said("override", cluster.url, NAME, "carol", "--rpu", "10")
    until(lambda: guard.peek(request("carol")).decisions[0].limit == 10, "the node has heard of it")
    assert guard.check(request("carol"))
    guard.close()
