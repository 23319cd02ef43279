"""Colour for people, JSON for programs, and help that fits."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner, Result

from diana import Limiter
from diana.cli.main import VERBS, diana
from tests.cli.test_watch import Watch, publish
from tests.servers.programs import VALKEY_9
from tests.servers.server import Server
from tests.servers.waiting import until

OLD = "url: /\nrules: [{name: addresses, actor: ip, unit: second, rpu: 10}]\n"
NEW = "url: /\nrules: [{name: addresses, actor: ip, unit: second, rpu: 20}, {name: all, unit: day, rpu: 9}]\n"
ESCAPE = "\x1b["


@pytest.fixture
def old(tmp_path: Path) -> str:
    (tmp_path / "old.yaml").write_text(OLD)
    return str(tmp_path / "old.yaml")


@pytest.fixture
def new(tmp_path: Path) -> str:
    (tmp_path / "new.yaml").write_text(NEW)
    return str(tmp_path / "new.yaml")


def on_a_terminal(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(diana, arguments, color=True, env=environment)


def test_help_lines_of_verbs_fit() -> None:
    lines = CliRunner().invoke(diana, ["--help"], terminal_width=80).output.splitlines()
    listed = [line for line in lines if line[:2] == "  " and line.split()[0] in diana.commands]
    assert len(listed) == len(VERBS)
    assert [line for line in listed if line.endswith("...")] == []


@pytest.mark.parametrize("verb", ["check", "explain", "diff"])
def test_colour_on_a_terminal_unless_no_color(verb: str, old: str, new: str) -> None:
    arguments = {"check": [old], "explain": [old, "GET", "/"], "diff": [old, new]}[verb]
    assert ESCAPE in on_a_terminal(verb, *arguments, NO_COLOR="").output
    assert ESCAPE not in on_a_terminal(verb, *arguments, NO_COLOR="1").output
    assert ESCAPE not in CliRunner().invoke(diana, [verb, *arguments]).output, "no terminal"


def test_explain_as_json(new: str) -> None:
    result = CliRunner().invoke(
        diana, ["explain", new, "GET", "//search", "--peer", "192.0.2.1", "--format", "json"]
    )
    explained = json.loads(result.output)
    assert (explained["allowed"], explained["read_as"]) == (True, "/search")
    assert [rule["name"] for rule in explained["rules"]] == ["addresses", "all"]
    assert explained["rules"][0] == {
        "name": "addresses",
        "line": 2,
        "url": "/",
        "methods": None,
        "actor": "ip",
        "key": "=192.0.2.1",
        "limit": "20/second",
        "algo": "TB",
        "scope": "local",
        "mode": "enforce",
        "cost": 1,
        "allowed": True,
        "most": 20,
        "remaining": 19,
        "charge_on": None,
        "drop": None,
        "why_limit": None,
        "listed": None,
    }
    assert explained["not_asked"] == []


def test_explain_asks_no_store_and_no_centre(tmp_path: Path) -> None:
    """A socket in a folder of its own: on a port somebody else's client might knock, who looks for a server that was there before."""
    with TemporaryDirectory(prefix="diana-") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/server.sock")
        listener.listen()
        url = f"unix://{folder}/server.sock"
        rules = tmp_path / "rules.yaml"
        rules.write_text(
            f"store: {url}\nrules_from: {url}\nlimits:\n"
            "  - {url: /, rules: [{unit: hour, rpu: 1, scope: global}]}\n"
        )
        result = CliRunner().invoke(diana, ["explain", str(rules), "GET", "/"])
        assert "0 of 1 left" in result.output, result.output
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_diff_as_json(old: str, new: str) -> None:
    result = CliRunner().invoke(diana, ["diff", old, new, "--format", "json"])
    assert result.exit_code == 1
    assert json.loads(result.output) == [
        {
            "change": "changed",
            "name": "addresses",
            "rule": "/: 20/second by ip, TB, local",
            "fields": {"rpu": {"before": "10", "after": "20"}},
        },
        {"change": "added", "name": "all", "rule": "/: 9/day by all, TB, local", "fields": {}},
    ]
    same = CliRunner().invoke(diana, ["diff", old, old, "--format", "json"])
    assert (same.exit_code, json.loads(same.output)) == (0, [])


def test_nodes_as_json(redis7: Server) -> None:
    limiter = Limiter("1/minute", store=f"{redis7.url}?namespace=json", name="seen")
    url = f"{redis7.url}?namespace=json"

    def seen() -> list[dict[str, object]]:
        output = CliRunner().invoke(diana, ["nodes", url, "--format", "json"]).output
        found: list[dict[str, object]] = json.loads(output)
        return found

    until(lambda: len(seen()) == 1, "it is seen")
    (node,) = seen()
    assert (node["host"], node["pid"]) == (os.uname().nodename, os.getpid())
    assert set(node) == {"id", "host", "pid", "silent_ms", "weight", "leased", "held", "used"}
    limiter.close()


def test_watch_as_json_lines() -> None:
    with Server(VALKEY_9) as server:
        publish(server, OLD)
        watch = Watch(server.url, "--count", "1", "--format", "json")
        try:
            watch.until_said('"event": "rules"')
            publish(server, "nonsense")
            watch.until_said('"event": "problems"')
            publish(server, NEW)
            assert watch.ended() == 0
        finally:
            watch.stop()
        events = [json.loads(line) for line in watch.lines]
    assert [event["event"] for event in events[:2]] == ["rules", "problems"]
    assert events[0]["changes"] == []
    assert [problem["where"] for problem in events[1]["problems"]] == ["remote"]
    (changed,) = [event for event in events[1:] if event["event"] == "rules"]
    assert [change["change"] for change in changed["changes"]] == ["changed", "added"]
