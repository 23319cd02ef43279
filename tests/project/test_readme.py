"""The README: what its first screen has, that it stands alone, and that following it leads where it says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from diana import load_rules
from tests.project.pages import LINK, PAGES, ROOT, anchors, blocks, prose
from tests.servers.process import Process

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST_SCREEN = TEXT.partition("\n## ")[0]
PATIENCE = 60.0
ROWS = re.findall(r"^\| (.+?) \| (`.+`) \|$", FIRST_SCREEN, re.MULTILINE)
WRITTEN = [code for _, cell in ROWS for code in re.findall(r"`(.+?)`", cell)]
RULES = [code for code in WRITTEN if code.startswith("- {")]
SETTINGS = [code for code in WRITTEN if re.match(r"[a-z_]+: ", code)]
LINES = [code for code in WRITTEN if code not in RULES + SETTINGS]


def test_the_first_screen_says_what_it_is_in_five_points_and_a_table() -> None:
    sentence = FIRST_SCREEN.split("\n\n")[2].replace("\n", " ")
    assert sentence.startswith("Diana is a rate limiter for Python")
    assert sentence.count(". ") == 0
    assert sentence.endswith(".")
    assert len(re.findall(r"^- \*\*", FIRST_SCREEN, re.MULTILINE)) == 5
    assert "| you want | you write |" in FIRST_SCREEN
    assert len(ROWS) >= 10
    assert len(FIRST_SCREEN.splitlines()) <= 45


@pytest.mark.parametrize("code", RULES)
def test_a_rule_of_the_table_is_a_rule(code: str, tmp_path: Path) -> None:
    tier = "tier: header X-Plan, trust_tier: true, " if "rpu: {" in code else ""
    file = tmp_path / "diana.yaml"
    file.write_text(
        f"identity: {{{tier}account: header X-User}}\nlimits: [{{url: /, rules: [{code[2:]}]}}]\n"
    )
    assert len(load_rules(file).rules) == 1


@pytest.mark.parametrize("code", SETTINGS)
def test_a_setting_of_the_table_is_a_setting(code: str, tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(f"{code}\nlimits: [{{url: /, rules: [{{unit: second, rpu: 10}}]}}]\n")
    assert len(load_rules(file).rules) == 1


@pytest.mark.parametrize("code", LINES)
def test_a_line_of_the_table_stands_in_an_example(code: str) -> None:
    """The examples are executed, by `test_docs.py`; commands are in the pages about them."""
    pages = (page.read_text(encoding="utf-8") for page in PAGES)
    assert any(code in block for page in pages for _, block in blocks(page))


def test_it_has_no_link_that_is_dead_where_only_the_readme_is_shown() -> None:
    here = {f"#{anchor}" for anchor in anchors(ROOT / "README.md")}
    for target in LINK.findall(prose(TEXT)):
        assert target in here or target.startswith("https://"), target


def test_every_file_it_names_is_there() -> None:
    named = re.findall(r"`((?:docs|examples|benchmarks)/[\w./-]+|[A-Z]+(?:\.zh)?\.md)`", TEXT)
    assert len(named) > 10
    for file in named:
        assert (ROOT / file).is_file(), file


def block_after(words: str) -> str:
    return blocks(TEXT.partition(words)[2])[0][1]


class App(Process):
    """The app of the README, under uvicorn, in a folder with nothing but what the README says."""

    ready = b"Uvicorn running on"
    taken = "address already in use"

    def _command(self, port: int) -> list[str]:
        (self.folder / "diana.yaml").write_text(block_after("The rules, `diana.yaml`:"))
        (self.folder / "main.py").write_text(block_after("The app, `main.py`:"))
        return [sys.executable, "-m", "uvicorn", "main:app", f"--port={port}"]


@pytest.fixture
def app() -> Iterator[App]:
    with App() as app:
        yield app


def test_following_it_gives_a_limited_app(app: App) -> None:
    session = block_after("and ask four times:")
    commands = [part.partition("\n") for part in re.split(r"^\$ ", session, flags=re.M)[1:]]
    assert len(commands) == 2
    for command, _, shown in commands:
        here = command.replace("http://127.0.0.1:8000", f"http://127.0.0.1:{app.port}")
        here = re.sub("^diana ", f"{sys.executable} -m diana ", here)
        done = subprocess.run(
            here, shell=True, cwd=app.folder, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.stdout == shown
