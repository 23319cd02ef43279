"""nginx and the imported rules side by side."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import NamedTuple

from diana import Guard
from diana.nginx.importing import import_nginx
from diana.nginx.importing.notes import Note
from diana.rules.loading import rules_from_bytes
from tests.nginx.import_diff.configurations import Configuration, random_configuration
from tests.nginx.import_diff.real_nginx import RealNginx
from tests.nginx.import_diff.requests import Asked, random_requests

REQUESTS = 60


class Compared(NamedTuple):
    seed: int
    text: str
    rules: str
    notes: list[Note]
    requests: int
    denied: int
    """By nginx."""
    differences: list[str]

    @property
    def is_wrong(self) -> bool:
        """It differs, and no note says that it may."""
        return bool(self.differences) and not self.notes

    def __str__(self) -> str:
        differences = "\n".join(self.differences)
        return f"seed {self.seed}\n{self.text}\nimported as\n{self.rules}\n{differences}"


class Totals:
    """Of many configurations."""

    def __init__(self, compared: Iterable[Compared]) -> None:
        self.configurations = self.requests = self.denied = self.noted = self.differing = 0
        self.wrong: list[Compared] = []
        for one in compared:
            self.configurations += 1
            self.requests += one.requests
            self.denied += one.denied
            self.noted += bool(one.notes)
            self.differing += bool(one.differences)
            if one.is_wrong:
                self.wrong.append(one)

    def __str__(self) -> str:
        return (
            f"{self.configurations} configurations, {self.requests} requests, {self.denied} of them denied by nginx; "
            f"{self.noted} configurations have notes, {self.differing} of them differ; {len(self.wrong)} differ without a note"
        )


def compare(seed: int) -> Compared:
    chance = random.Random(seed)
    configuration = random_configuration(chance)
    requests = random_requests(configuration, REQUESTS, chance)
    try:
        return _compared(seed, configuration, requests)
    except Exception as error:
        error.add_note(f"seed {seed}\n{configuration.template}")
        raise


def _compared(seed: int, configuration: Configuration, requests: list[Asked]) -> Compared:
    with RealNginx(configuration) as nginx:
        imported = import_nginx(str(nginx.tested))
        rules = imported.text()
        allowed = [nginx.allows(asked) for asked in requests]
        text = nginx.tested.read_text(encoding="utf-8")
    differences: list[str] = []
    if imported.document["limits"]:
        with_rules = _allowed_by_rules(rules, requests)
    else:
        with_rules = [True] * len(requests)
    for number, (asked, theirs, ours) in enumerate(zip(requests, allowed, with_rules, strict=True)):
        if theirs is not ours:
            words = "allows" if theirs else "denies"
            differences.append(
                f"request {number}, which nginx {words} and the rules do not: {asked}"
            )
    return Compared(
        seed, text, rules, imported.notes, len(requests), allowed.count(False), differences
    )


def _allowed_by_rules(rules: str, requests: list[Asked]) -> list[bool]:
    guard = Guard(rules_from_bytes(rules.encode()))
    try:
        return [guard.check(asked.request()).allowed for asked in requests]
    finally:
        guard.close()
