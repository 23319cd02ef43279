"""`diana import nginx`: a rules file on standard output, remarks on standard error."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diana import load_rules
from diana.cli.main import diana
from tests.cli.runner import separate_runner

CONFIG = """
limit_req_zone $http_x_account zone=accounts:10m rate=100r/m;
server { location = /orders { limit_req zone=accounts burst=20 nodelay; limit_req_status 429; }
location /orders/ { limit_req zone=accounts burst=20 nodelay; limit_req_status 429; } }
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "nginx.conf"
    file.write_text(CONFIG, encoding="utf-8")
    return file


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(diana, ["import", "nginx", *map(str, args)])


def test_the_rules_file_can_be_used_as_it_is(config: Path, tmp_path: Path) -> None:
    done = run(config, "-o", tmp_path / "diana.yaml")
    assert (done.exit_code, done.output) == (0, "")
    (rule,) = load_rules(tmp_path / "diana.yaml").rules
    assert str(rule) == "/orders: 100/minute by header x-account, LB, local"
    assert (rule.missing, rule.status) == ("skip", 429)
    assert run(config).stdout == (tmp_path / "diana.yaml").read_text(encoding="utf-8")


def test_a_file_is_not_overwritten(config: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("mine")
    done = run(config, "-o", tmp_path / "mine.yaml")
    assert done.exit_code == 1
    assert "mine.yaml: File exists" in done.output
    assert (tmp_path / "mine.yaml").read_text() == "mine"


def test_what_differs_is_told_by_file_and_line(config: Path) -> None:
    config.write_text(CONFIG.replace("/orders/", "/orders"), encoding="utf-8")
    done = separate_runner().invoke(diana, ["import", "nginx", str(config)])
    assert f"{config}:4: location /orders also matches /ordersx" in done.stderr
    assert load_rules_from(done.stdout, config) == 1
    assert done.exit_code == 0
    assert run(config, "--strict").exit_code == 1


def load_rules_from(text: str, config: Path) -> int:
    file = config.with_suffix(".yaml")
    file.write_text(text, encoding="utf-8")
    return len(load_rules(file).rules)


def test_strict_is_content_with_what_is_translated_to_the_letter(config: Path) -> None:
    config.write_text(CONFIG.replace("= /orders ", "/ "), encoding="utf-8")
    done = run(config, "--strict")
    assert done.exit_code == 0
    assert "url: /\n" in done.stdout


def test_a_mistake_is_one_line(config: Path) -> None:
    config.write_text("http {\n  location {\n", encoding="utf-8")
    done = run(config)
    assert done.exit_code == 1
    assert done.output == (
        f'Error: {config}:3: the block that begins in line 2 must end with "}}" (got the end of the file)\n'
    )


def test_a_map_that_looks_at_itself_is_noted(config: Path) -> None:
    config.write_text(
        "map $x $x { default 1; }\nlimit_req_zone $x zone=a:1m rate=1r/s;\nlimit_req zone=a;\n",
        encoding="utf-8",
    )
    done = run(config)
    assert done.exit_code == 1
    assert (
        f"{config}:2: limit_req_zone is not translated: the map of $x looks at itself"
        in done.output
    )


def test_nothing_to_translate_is_an_error(config: Path) -> None:
    config.write_text("server { }", encoding="utf-8")
    done = run(config)
    assert done.exit_code == 1
    assert "no limit_req or limit_conn" in done.output
