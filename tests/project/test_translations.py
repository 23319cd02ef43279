"""The Chinese pages say what the English ones say, as far as a program can tell: the same code, parts and fields."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.project.pages import ROOT, blocks, prose

TWINS = {
    "README.zh.md": "README.md",
    "docs/zh/tutorial.md": "docs/tutorial.md",
    "docs/zh/classic-example.md": "docs/classic-example.md",
    "docs/zh/rules-file.md": "docs/reference/rules-file.md",
}
PLANS = {"tier", "trust_tier", "overrides", "allow", "only", "charge_on"}
"""Designed, and in the Chinese page already; in the English one as soon as they are built."""
SOURCE = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))


@pytest.fixture(params=TWINS.items(), ids=lambda twins: twins[0])
def twins(request: pytest.FixtureRequest) -> tuple[str, str]:
    chinese, english = request.param
    return text(chinese), text(english)


def text(name: str) -> str:
    return Path(ROOT / name).read_text(encoding="utf-8")


def test_they_have_the_same_code_blocks(twins: tuple[str, str]) -> None:
    chinese, english = (blocks(twin) for twin in twins)
    assert chinese == english


def test_they_have_the_same_parts(twins: tuple[str, str]) -> None:
    """As many headings of each level, in the same order."""
    chinese, english = (re.findall(r"^#+ ", prose(twin), re.MULTILINE) for twin in twins)
    assert chinese == english


def test_what_the_tables_tell_to_write_is_the_same() -> None:
    """The rows of the README's first screen."""
    chinese, english = (
        re.findall(r"^\| .+? \| (`.+)\|$", text(name).partition("\n## ")[0], re.MULTILINE)
        for name in ("README.zh.md", "README.md")
    )
    codes = [[re.findall("`(.+?)`", row) for row in rows] for rows in (chinese, english)]
    assert codes[0] == codes[1]
    assert len(codes[0]) > 10


def test_the_same_fields_are_explained() -> None:
    chinese, english = (
        fields(text(name)) for name in ("docs/zh/rules-file.md", "docs/reference/rules-file.md")
    )
    assert english - chinese == set()
    assert chinese - english == (set() if "trust_tier" in SOURCE else PLANS)


def fields(page: str) -> set[str]:
    """What the tables explain: the names in their first column."""
    firsts = re.findall(r"^\| (`[a-z_`, ]+`) \|", page, re.MULTILINE)
    return {name for first in firsts for name in re.findall("`(.+?)`", first)}
