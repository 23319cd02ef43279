"""All rules together: which of them apply to a request, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from diana.core.address import Proxies
from diana.core.path import path_of_segments, segments_of_path
from diana.core.request import Request
from diana.core.rule import Body, Place, Rule
from diana.core.tree import SegmentTree
from diana.core.url import Url

LONGEST_REMEMBERED = 256
"""Paths up to this length are matched once; a client that invents paths pays for it, not the others."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a denied client gets."""

    status: int = 503
    headers: tuple[str, ...] = ("ietf", "retry-after")
    body: Body = field(default_factory=Body)


@dataclass(frozen=True, slots=True)
class Settings:
    store: str | None = None
    local_store: str = "memory://"
    namespace: str = "diana"
    proxies: Proxies = field(default_factory=Proxies)
    answer: Answer = field(default_factory=Answer)


@dataclass(frozen=True, slots=True)
class Warning:
    """Legal, but probably not what was meant."""

    message: str
    place: Place


class Policy:
    """Rules in the order in which they are asked: broad to narrow, then as in the file."""

    def __init__(
        self,
        rules: Sequence[Rule],
        *,
        exempt: Sequence[tuple[Url, int]] = (),
        settings: Settings | None = None,
        version: str = "",
        warnings: Sequence[Warning] = (),
    ) -> None:
        self.rules = tuple(sorted(rules, key=_breadth))
        self.settings = settings or Settings()
        self.version = version
        self.warnings = tuple(warnings)
        self._tree = SegmentTree((rule.url, rule) for rule in self.rules)
        self._exempt = SegmentTree(exempt)
        self._rank = {id(rule): rank for rank, rule in enumerate(self.rules)}
        self._branches = any(None in rule.url.segments for rule in rules)
        self._picks = bool(exempt) or any(rule.methods is not None for rule in rules)
        self._remembered = lru_cache(4_096)(self._matched)
        self.has_shadows = any(rule.mode == "shadow" for rule in rules)
        self.has_queues = any(rule.meter.algorithm.code == "LB" for rule in rules)

    def match(self, request: Request) -> tuple[Rule, ...]:
        """Every rule whose url covers the request. `HEAD` counts as `GET`."""
        path = request.path
        if len(path) <= LONGEST_REMEMBERED:
            return self._remembered(request.method, path)
        return self._matched(request.method, path)

    def _matched(self, method: str, path: str) -> tuple[Rule, ...]:
        segments = segments_of_path(path)
        rules = self._tree.covering(segments)
        if self._branches:
            rules = tuple(sorted(rules, key=self._rank_of))
        if self._picks:
            method = "GET" if method == "HEAD" else method
            left_alone = self._exempt.covering(segments)
            rules = tuple(
                rule
                for rule in rules
                if (rule.methods is None or method in rule.methods) and rule.block not in left_alone
            )
        return rules

    def why_not(self, rule: Rule, request: Request) -> str:
        """Why a rule is not asked about a request, in words."""
        path = path_of_segments(request.segments)
        if not rule.url.covers_path(request.segments):
            return f"its url {rule.url.spelling} does not cover {path}"
        if rule.methods is not None and request.method not in rule.methods:
            return f"it is for {', '.join(sorted(rule.methods))} only"
        if rule.block in self._exempt.covering(request.segments):
            return f"{path} is excepted"
        return f"it has no {rule.actor}, and missing is {rule.missing}"

    def _rank_of(self, rule: Rule) -> int:
        return self._rank[id(rule)]


def _breadth(rule: Rule) -> tuple[int, int]:
    """Fewer segments are broader; of as many, those with fewer words of their own. Sorting keeps the file's order."""
    segments = rule.url.segments
    return len(segments), sum(segment is not None for segment in segments)
