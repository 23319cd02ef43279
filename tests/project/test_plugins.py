"""`diana.plugins` is all that authors of plug-ins need, and all that the docs show them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import diana.plugins

ROOT = Path(__file__).parents[2]
PUBLIC = {"diana", "diana.plugins", "diana.testing"}
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
HOWTOS = [
    *sorted((ROOT / "docs" / "howto").glob("write-*.md")),
    ROOT / "docs" / "howto" / "observe-decisions.md",
]
STRANGER = sorted((ROOT / "tests" / "stranger").rglob("*.py"))


def modules_of_diana(code: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def test_the_names_are_these() -> None:
    assert diana.plugins.__all__ == [
        "NEVER",
        "NO_LOG",
        "SECOND_US",
        "UNKNOWN",
        "Activity",
        "Actor",
        "Algorithm",
        "App",
        "AsyncStore",
        "AsyncTake",
        "Charge",
        "Charges",
        "Clock",
        "ConcurrencyAlgorithm",
        "ConcurrencyLimit",
        "ConfigError",
        "CounterSpec",
        "Decision",
        "Delaying",
        "Factor",
        "Filter",
        "GatewayWorkers",
        "Identity",
        "InLua",
        "Level",
        "Limit",
        "Log",
        "MemoryStore",
        "Observer",
        "Open",
        "Outcome",
        "Params",
        "Proxies",
        "Request",
        "Revision",
        "RuleContext",
        "Sample",
        "Shared",
        "Shed",
        "Source",
        "SourceError",
        "State",
        "Store",
        "StoreError",
        "Take",
        "Tiered",
        "Url",
        "Verdict",
        "Wrap",
        "WritableSource",
        "algorithms",
        "checked_cost",
        "decide_all_or_nothing",
        "divided",
        "log_of",
        "meter_from_limit",
        "slowed",
        "wall_us",
    ]
    assert all(hasattr(diana.plugins, name) for name in diana.plugins.__all__)


def test_each_name_is_explained_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "plugins.md").read_text(encoding="utf-8")
    missing = [name for name in diana.plugins.__all__ if not re.search(rf"`{name}\b", page)]
    assert missing == []


@pytest.mark.parametrize("page", HOWTOS, ids=lambda page: page.stem)
def test_the_howtos_import_nothing_else(page: Path) -> None:
    code = "\n".join(BLOCK.findall(page.read_text(encoding="utf-8")))
    used = {module for module in modules_of_diana(code) if module.startswith("diana")}
    assert used
    assert used <= PUBLIC


@pytest.mark.parametrize("path", STRANGER, ids=lambda path: path.stem)
def test_the_stranger_imports_nothing_else(path: Path) -> None:
    modules = modules_of_diana(path.read_text(encoding="utf-8"))
    assert {module for module in modules if module.startswith("diana")} <= PUBLIC
