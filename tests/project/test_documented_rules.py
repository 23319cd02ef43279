"""Rules files that README, tutorials, how-tos and examples offer to copy: `diana check --strict` accepts them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import NamedTuple
from uuid import uuid4

import pytest

from diana import Guard, Request
from diana.rules.loading import rules_from_bytes
from diana.testing import FakeClock
from tests.project.pages import DOCS, ROOT, blocks, name

PAGES = [
    ROOT / "README.md",
    ROOT / "README.zh.md",
    *(DOCS / page for page in ("tutorial.md", "tour.md", "zh/tutorial.md")),
    *sorted((DOCS / "howto").glob("*.md")),
]
TEXT = re.compile(r'"""(?:\\?\n)?(.*?)"""', re.DOTALL)
IN_CODE = ("scope is global but no store is set",)
"""A page may give the store, the account and the tier in code."""
WRONG_ON_PURPOSE = {"rpu: many"}
ENVIRONMENT = {"INTERNAL_TOKEN": "t-1", "ETCD_USER": "diana", "ETCD_PASSWORD": "secret"}


class Document(NamedTuple):
    page: str
    text: str


def documents() -> Iterator[Document]:
    for page in PAGES:
        for language, block in blocks(page.read_text(encoding="utf-8")):
            texts = {"yaml": [block], "python": TEXT.findall(block)}.get(language, [])
            yield from (Document(name(page), text) for text in texts if is_rules_file(text))
    for file in sorted((ROOT / "examples").glob("*.yaml")):
        yield Document(name(file), file.read_text(encoding="utf-8"))


def is_rules_file(text: str) -> bool:
    """Not a part of one, and none that shows a mistake."""
    is_whole = re.search(r"^\s*(?:- )?\{?url: ", text, re.I | re.M) and re.search(r"\brules:", text)
    return bool(is_whole) and not any(wrong in text for wrong in WRONG_ON_PURPOSE)


DOCUMENTS = list(documents())


def test_they_are_found() -> None:
    pages = {document.page for document in DOCUMENTS}
    assert {name(page) for page in PAGES[:5]} <= pages
    assert "examples/login.yaml" in pages
    assert len(DOCUMENTS) > 40


@pytest.mark.parametrize(
    "document", DOCUMENTS, ids=[f"{one.page}-{place}" for place, one in enumerate(DOCUMENTS)]
)
def test_a_rules_file_to_copy_has_no_warnings(document: Document) -> None:
    policy = rules_from_bytes(document.text.encode(), environ=ENVIRONMENT)
    messages = [warning.message for warning in policy.warnings]
    assert [said for said in messages if not said.startswith(IN_CODE)] == []


README = (ROOT / "README.md").read_text(encoding="utf-8")


def first_rules() -> Iterator[tuple[str, int]]:
    """Those of the table by API key, and the file of the first app; each with the most that one address may send at once."""
    (row,) = re.findall(r"^\| .*each API key.* \| (`.+`) \|$", README, re.MULTILINE)
    rules = textwrap.indent("\n".join(re.findall("`(.+?)`", row)), "  ")
    yield f"url: /\nrules:\n{rules}\n", 300
    yield blocks(README.partition("The rules, `diana.yaml`:")[2])[0][1], 100


@pytest.mark.parametrize(("rules", "most"), list(first_rules()), ids=["table", "file"])
def test_the_first_rules_of_the_readme_hold_against_invented_keys(rules: str, most: int) -> None:
    policy = rules_from_bytes(rules.encode())
    assert policy.warnings == ()
    guard = Guard(policy, clock=FakeClock())
    invented = [
        Request("GET", "/search", {"X-Api-Key": uuid4().hex}, peer="203.0.113.9")
        for _ in range(1_000)
    ]
    assert sum(map(bool, map(guard.check, invented))) == most
    elsewhere = Request("GET", "/search", {"X-Api-Key": "alice"}, peer="198.51.100.7")
    assert guard.check(elsewhere), "another address has a limit of its own"
