"""A configuration of nginx, imported; and how many requests the rules that came out let pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from diana import Guard, Request
from diana.nginx.importing import Imported, import_nginx
from diana.rules.loading import rules_from_bytes
from diana.testing import FakeClock

Import = Callable[[str], "Rules"]


class Rules:
    """What came out of an import."""

    def __init__(self, imported: Imported) -> None:
        self.document = imported.document
        self.notes = [note.text for note in imported.notes]
        self.lines = [note.line for note in imported.notes]
        self._guard: Guard | None = None

    def passed(
        self,
        count: int,
        path: str = "/",
        host: str = "any.example",
        peer: str = "192.0.2.1",
        query: str = "",
        **headers: str,
    ) -> int:
        """Of so many requests at one moment; earlier ones count."""
        if self._guard is None:
            text = Imported(self.document, []).text().encode()
            self._guard = Guard(rules_from_bytes(text), clock=FakeClock())
        named = {name.replace("_", "-"): value for name, value in headers.items()} | {"Host": host}
        requests = [Request("GET", path, named, query, peer) for _ in range(count)]
        return sum(self._guard.check(request).allowed for request in requests)

    def noted(self, *words: str) -> bool:
        """Whether one note has all these words."""
        return any(all(word in note for word in words) for note in self.notes)

    def blocks(self) -> list[tuple[str, list[str] | None, list[str]]]:
        """Url, exceptions, and the names of the rules."""
        return [
            (block["url"], block.get("except"), [rule["name"] for rule in block["rules"]])
            for block in self.document["limits"]
        ]

    def only_rule(self) -> dict[str, object]:
        (block,) = self.document["limits"]
        (rule,) = block["rules"]
        return dict(rule)


@pytest.fixture
def imported(tmp_path: Path) -> Import:
    """Of what stands in http, from line 3 on."""

    def translate(http: str) -> Rules:
        file = tmp_path / "nginx.conf"
        file.write_text(f"events {{}}\nhttp {{\n{http}\n}}\n", encoding="utf-8")
        return Rules(import_nginx(str(file)))

    return translate
