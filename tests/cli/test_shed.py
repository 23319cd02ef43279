"""`diana shed`: the factors now."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diana.cli.main import diana
from tests.servers.server import Server

LIMITS = "limits: [{url: /, rules: [{unit: hour, rpu: 9}]}]"


def shed(*arguments: str) -> Result:
    return CliRunner().invoke(diana, ["shed", *arguments])


@pytest.fixture
def rules(tmp_path: Path, redis7: Server) -> Path:
    """A queue of 300, which is above the highest level."""
    client = redis7.client()
    client.flushall()
    client.rpush("jobs", *range(300))
    file = tmp_path / "diana.yaml"
    file.write_text(
        f"shed:\n- {{factor: redis_length, url: '{redis7.url}', key: jobs, "
        f"levels: [{{above: 50, reject: 20}}, {{above: 100, reject: 40}}]}}\n- factor: memory\n- factor: loop_lag\n{LIMITS}"
    )
    return file


def test_a_line_for_each_factor(rules: Path) -> None:
    result = shed(str(rules))
    assert result.exit_code == 0
    queue, memory, loop, all = result.output.splitlines()
    assert queue == "redis_length    now 300, smoothed 300, level 2 of 2, rejects 40 %"
    assert re.fullmatch(
        r"memory          now \S+%, smoothed \S+%, level \d of 3, rejects \d+ %", memory
    )
    assert loop == "loop_lag        of each serving process; not measured here"
    assert re.fullmatch(r"rejecting (40|70) % of requests", all)


def test_json(rules: Path) -> None:
    told = json.loads(shed(str(rules), "--format", "json").output)
    assert told["reject"] >= 40
    assert told["factors"][0] == {
        "factor": "redis_length", "value": 300.0, "smoothed": 300.0, "level": 2, "reject": 40, "unit": "", "problem": None,
        "of_process": False,
    }  # fmt: skip
    assert told["factors"][2] == {"factor": "loop_lag", "of_process": True}


def test_watched_each_time_is_a_line_of_json(rules: Path) -> None:
    lines = shed(str(rules), "--watch", "--count", "2", "--format", "json").output.splitlines()
    assert [json.loads(line)["factors"][0]["level"] for line in lines] == [2, 2]
    text = shed(str(rules), "--watch", "--count", "1").output.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d", text[0])


def test_what_cannot_be_measured_says_why(rules: Path, redis7: Server) -> None:
    client = redis7.client()
    client.set("jobs", "x")
    assert shed(str(rules)).output.splitlines()[0] == (
        "redis_length    not available: TypeError: key jobs is a string, which has no length"
    )
    client.delete("jobs")


def test_without_shed(tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(LIMITS)
    result = shed(str(file))
    assert result.exit_code == 1
    assert (
        result.output == f"Error: {file} has no shed; write shed: default, or a list of factors\n"
    )


def test_a_mistake(tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(f"shed: [{{factor: cup}}]\n{LIMITS}")
    result = shed(str(file))
    assert result.exit_code == 1
    assert "did you mean cpu?" in result.output
