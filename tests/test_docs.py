"""What README and docs/ show really happens, and every link leads somewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.servers.programs import VALKEY_9
from tests.servers.server import Server

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BUDGET = re.compile(r"(\bbudget=|\bstore_budget: )\d+ms")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
STAND_INS = {
    "redis://localhost:6379": "valkey",
    "redis+cluster://10.0.0.1:6379,10.0.0.2:6379": "cluster",
    "redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/limits": "sentinels",
}
"""The stores of the examples, and the fixtures that really run: those listen where there is room."""


@pytest.fixture
def valkey() -> Iterator[Server]:
    """Empty for every page."""
    with Server(VALKEY_9) as server:
        yield server


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_example_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """One page, one namespace, top to bottom, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    # A busy machine shall not look like a lost store. The same for budgets that a page writes down, below.
    monkeypatch.setattr("diana.stores.redis.store.BUDGET_US", 10_000_000)
    text = page.read_text(encoding="utf-8")
    module = ModuleType("docs")  # where frameworks look up annotations
    monkeypatch.setitem(sys.modules, "docs", module)
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1))
        code = _with_stand_ins(block[1], request)
        exec(compile("\n" * line + code, str(page), "exec"), vars(module))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{name(page)} links to {target}"


def _with_stand_ins(code: str, request: pytest.FixtureRequest) -> str:
    for shown, fixture in STAND_INS.items():
        if shown in code:
            code = code.replace(shown, request.getfixturevalue(fixture).url)
    return BUDGET.sub(r"\g<1>10s", code)
