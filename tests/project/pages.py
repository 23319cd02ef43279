"""README and docs/: which pages there are, and their code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "README.zh.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(DOCS.rglob("*.md")),
]
FENCED = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(text: str) -> list[tuple[str, str]]:
    """Each code block: its language, and what is in it."""
    return [(block[1], block[2]) for block in FENCED.finditer(text)]


def prose(text: str) -> str:
    return FENCED.sub("", text)


def anchors(page: Path) -> set[str]:
    """What a link may name in this page: its headings, spelled as web sites for code and ours spell them."""
    headings = re.findall(r"^#+ (.+)$", prose(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
