from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diana.cli.main import diana

GOOD = "url: /\nrules: [{unit: second, rpu: 10}]\n"
WRONG = "url: /\nrules: [{unit: w, rpu: -1}]\n"
DEFAULT_STATUS = (
    "denied requests get 503 Service Unavailable, the default: to load balancers and monitors it may look like a broken server; "
    "write response: {status: 429} to tell clients to slow down"
)
SUSPICIOUS = "url: /\nrules: [{actor: device, unit: second, rpu: 10}]\n"


def check(folder: Path, *arguments: str, **files: str) -> Result:
    names = []
    for name, content in files.items():
        (folder / name).write_text(content)
        names.append(str(folder / name))
    return CliRunner().invoke(diana, ["check", *arguments, *names])


def test_a_right_file_is_counted(tmp_path: Path) -> None:
    result = check(tmp_path, good=GOOD)
    assert result.exit_code == 0
    assert result.output.splitlines()[0] == f"{tmp_path}/good: 1 rule"


def test_every_mistake_is_told_with_its_place(tmp_path: Path) -> None:
    result = check(tmp_path, good=GOOD, wrong=WRONG)
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        f"{tmp_path}/good: 1 rule",
        f"{tmp_path}/wrong:2:16: rules[0].unit: 'w' is no duration; write second, minute, hour, day, "
        "or a number with ms, s, m, h or d such as 30s or 5m",
        f"{tmp_path}/wrong:2:24: rules[0].rpu: '-1' is no whole number from 0; write digits such as 10",
        f"{tmp_path}/wrong: 2 mistakes",
        DEFAULT_STATUS,
    ]


def test_the_status_of_denied_requests_is_told_once_with_a_reason_to_change_it(
    tmp_path: Path,
) -> None:
    chosen = "response: {status: 429}\nlimits:\n  - " + GOOD.replace("\n", "\n    ")
    result = check(tmp_path, one=GOOD, other=GOOD, chosen=chosen)
    assert result.exit_code == 0
    assert result.output.splitlines()[-2:] == [
        DEFAULT_STATUS,
        "denied requests get 429 Too Many Requests",
    ]
    assert result.output.count("denied requests") == 2


def test_a_status_that_was_chosen_needs_no_reason(tmp_path: Path) -> None:
    text = "Response: {Status: 503}\nlimits:\n  - " + GOOD.replace("\n", "\n    ")
    assert check(tmp_path, chosen=text).output.endswith(
        "denied requests get 503 Service Unavailable\n"
    )
    assert "denied requests" not in check(tmp_path, wrong=WRONG).output


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--strict"], 1)])
def test_a_warning_is_no_mistake_unless_strict(
    tmp_path: Path, options: list[str], code: int
) -> None:
    result = check(tmp_path, *options, suspicious=SUSPICIOUS)
    assert result.exit_code == code
    assert (
        "suspicious:2:9: warning: rules[0]: device is read from header X-Device-Id" in result.output
    )
    assert "suspicious: 1 rule, 1 warning\n" in result.output


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--strict"], 1)])
def test_a_method_that_is_none_is_warned_of(tmp_path: Path, options: list[str], code: int) -> None:
    result = check(tmp_path, *options, typo=GOOD.replace("rules", "methods: [GTE]\nrules"))
    assert result.exit_code == code
    assert (
        "typo:2:11: warning: methods[0]: 'GTE' is no registered method of HTTP; did you mean GET?\n"
        in result.output
    )


def test_a_warning_about_a_folder_names_the_file_and_its_line(tmp_path: Path) -> None:
    folder = tmp_path / "rules.d"
    folder.mkdir()
    (folder / "a.yaml").write_text(GOOD)
    (folder / "b.yaml").write_text(GOOD.replace("url: /", "url: /b\nmethods: GTE"))
    result = CliRunner().invoke(diana, ["check", str(folder)])
    assert f"{folder}/b.yaml:2:10: warning: [1].methods: 'GTE'" in result.output
    result = CliRunner().invoke(diana, ["check", "--format", "json", str(folder)])
    ((warning,),) = [report["warnings"] for report in json.loads(result.output)]
    assert (warning["file"], warning["line"]) == (f"{folder}/b.yaml", 2)


def test_as_json(tmp_path: Path) -> None:
    result = check(tmp_path, "--format", "json", wrong=WRONG)
    (report,) = json.loads(result.output)
    assert report["mistakes"][1] == {
        "file": str(tmp_path / "wrong"),
        "line": 2,
        "column": 24,
        "path": "rules[0].rpu",
        "message": "'-1' is no whole number from 0; write digits such as 10",
    }


@pytest.mark.parametrize("name", ["nowhere.yaml", "."])
def test_what_cannot_be_read_exits_with_two(tmp_path: Path, name: str) -> None:
    result = CliRunner().invoke(diana, ["check", str(tmp_path / name)])
    assert result.exit_code == 2
    assert "cannot be read" in result.output


def test_without_a_file_it_says_how_to_call_it() -> None:
    result = CliRunner().invoke(diana, ["check"])
    assert result.exit_code == 2
    assert "Usage:" in result.output
