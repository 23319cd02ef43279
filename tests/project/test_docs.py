"""What README and docs/ show really happens, and every link leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from uuid import uuid4

import click
import pytest

from diana.cli.check import check
from tests.project.pages import DOCS, LINK, PAGES, anchors, name, prose
from tests.servers.programs import VALKEY_9
from tests.servers.server import Server

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BUDGET = re.compile(r"(\bbudget=|\bstore_budget: )\d+ms")
STAND_INS = {
    "redis://localhost:6379": "valkey",
    "redis+cluster://10.0.0.1:6379,10.0.0.2:6379": "cluster",
    "redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/limits": "sentinels",
}
"""The stores of the examples, and the fixtures that really run: those listen where there is room."""
OWN = {
    # Of this run: the zone of one that was killed would still be there, and count.
    "docs-example": f"docs-example-{uuid4().hex[:12]}",
    # Who stands still meanwhile has not waited.
    "from time import monotonic\n": "from tests.servers.awake import awake_seconds as monotonic\n",
}
"""What the examples share with all of the machine, and what they get instead."""

DJANGO_SITES = {
    "docs/coming-from/django-ratelimit.md",
    "docs/coming-from/django-rest-framework.md",
}
"""Pages that configure Django, which a process can do once: each in a process of its own."""


@pytest.fixture
def valkey() -> Iterator[Server]:
    """Empty for every page."""
    with Server(VALKEY_9) as server:
        yield server


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_example_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """One page, one namespace, top to bottom, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    # A busy machine shall not look like a lost store. The same for budgets that a page writes down, below.
    monkeypatch.setattr("diana.stores.redis.store.BUDGET_US", 10_000_000)
    text = page.read_text(encoding="utf-8")
    if name(page) in DJANGO_SITES:
        _run_in_a_process_of_its_own("\n".join(BLOCK.findall(text)))
        return
    module = ModuleType("docs")  # where frameworks look up annotations
    monkeypatch.setitem(sys.modules, "docs", module)
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1))
        code = _with_stand_ins(block[1], request)
        exec(compile("\n" * line + code, str(page), "exec"), vars(module))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page.read_text(encoding="utf-8"))):
        file, _, anchor = target.partition("#")
        if "://" not in target:
            there = page.parent / file if file else page
            assert there.exists(), f"{name(page)} links to {target}"
            assert not anchor or anchor in anchors(there), f"{name(page)} links to {target}"


def test_every_page_is_in_a_table_of_contents() -> None:
    """The site's navigation is made of them too."""
    linked = {
        (index.parent / target.partition("#")[0]).resolve()
        for index in (DOCS / "index.md", DOCS / "zh" / "index.md")
        for target in [index.name, *LINK.findall(index.read_text(encoding="utf-8"))]
    }
    assert [page for page in PAGES if DOCS in page.parents and page not in linked] == []


def _run_in_a_process_of_its_own(code: str) -> None:
    Path("page.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-W", "error", "page.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def _with_stand_ins(code: str, request: pytest.FixtureRequest) -> str:
    for shown, fixture in STAND_INS.items():
        if shown in code:
            code = code.replace(shown, request.getfixturevalue(fixture).url)
    for shown, own in OWN.items():
        code = code.replace(shown, own)
    return BUDGET.sub(r"\g<1>10s", code)


def test_the_reference_of_check_has_all_its_options() -> None:
    text = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    section = text.partition("\n## check\n")[2].partition("\n## ")[0]
    for option in check.params:
        if isinstance(option, click.Option):
            assert option.opts[0] in section
    assert "`-` is standard input" in section
