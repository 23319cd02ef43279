"""All rules together: which of them apply to a request, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from diana.core.actor import CODE
from diana.core.client_address import Proxies
from diana.core.errors import ConfigError, shown
from diana.core.filter_settings import FilterSettings
from diana.core.limit import uses_slots
from diana.core.limit_adjustments import Functions, skip_reason
from diana.core.matched_rules import MatchedRules
from diana.core.path_readings import (
    PathReading,
    Readings,
    path_of_segments,
    readings_of_path,
    readings_under_mounts,
    words_of_path,
)
from diana.core.request import Request, printable
from diana.core.rule import Body, FilePosition, Rule
from diana.core.rule_names import labelled, rule_named
from diana.core.rule_summary import add_facts
from diana.core.settings import LeaseTerms
from diana.core.shed_settings import ShedSettings
from diana.core.url_pattern import SegmentTree, Url

LONGEST_REMEMBERED = 256
"""Paths up to this length are matched once; a client that invents paths pays for it, not the others."""
LONGEST_METHOD = 32
IS_COROUTINE = 0x80
"""In the flags of a function's code: it is an `async def`."""
MOST_MATCHES = 4_096
"""Different sets of rules that are remembered, or twice as many as there are rules."""


@dataclass(frozen=True, slots=True)
class ResponseSettings:
    """What a denied client gets."""

    status: int = 503
    headers: tuple[str, ...] = ("ietf", "retry-after")
    body: Body = field(default_factory=Body)


class RulesFrom(NamedTuple):
    """Where the rules come from, if not from here."""

    url: str
    keep: str | None = None
    """A file for the last good copy."""


@dataclass(frozen=True, slots=True)
class Settings:
    store: str | None = None
    local_store: str = "memory://"
    store_budget_us: int | None = None
    require_store: bool = False
    """The start fails if the store cannot be reached or refuses the login."""
    namespace: str = "diana"
    nodes: int | None = None
    """How many share a limit, while it is not known."""
    weight: int | None = None
    """Of this node, when a limit is divided."""
    lease: LeaseTerms = field(default_factory=LeaseTerms)
    rules_from: RulesFrom | None = None
    proxies: Proxies = field(default_factory=Proxies)
    identity: Mapping[str, Any] = field(default_factory=dict)
    """As it is written, for limits beside the file's."""
    missing: str = "ip"
    mounts: tuple[PathReading, ...] = ()
    """Prefixes under which the same handlers are reached too."""
    answer: ResponseSettings = field(default_factory=ResponseSettings)
    filters: tuple[FilterSettings, ...] = ()
    shed: tuple[ShedSettings, ...] = ()
    """Factors of load shedding."""

    @property
    def found_by_code(self) -> tuple[str, ...]:
        """What `identity` leaves to the application's code: `account`, `device`, `tier`."""
        return tuple(kind for kind, where in self.identity.items() if where == CODE)


@dataclass(frozen=True, slots=True)
class Warning:
    """Legal, but probably not what was meant."""

    message: str
    position: FilePosition


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
        self.rules = labelled(sorted(rules, key=_breadth))
        add_facts(self.rules)
        self.settings = settings or Settings()
        self.version = version
        self.warnings = tuple(warnings)
        self.shed_kinds = frozenset(
            kind
            for line in self.settings.shed
            for entry in (line.last.entries if line.last else ())
            for kind in entry.kinds
        )
        """Identities that code may have to find before a request can be shed."""
        self.exempt = tuple(exempt)
        """Urls that the rules of a block leave alone, each with the block's number."""
        self.waits = any(
            uses_slots(rule.meter.algorithm) and getattr(rule.meter.params, "max_wait_us", 0)
            for rule in rules
        )
        """Requests may wait for a place."""
        self._by_method = any(rule.methods is not None for rule in rules)
        # Of a thing apart, not of our own method: a circle would leave every replaced policy to the garbage collector.
        self._matched = _Matching(self.rules, exempt, self.settings.mounts).matched
        self._remembered = lru_cache(4_096)(self._matched)

    def with_functions(
        self,
        rule: str,
        *,
        limit: Callable[[Request], Any] | None = None,
        allow: Callable[[Request], Any] | None = None,
        cost: Callable[[Request], Any] | None = None,
    ) -> Policy:
        """The same, but code says for each request what this rule's limit is, whether it is left alone, or what it costs."""
        changed = rule_named(rule, self.rules)
        functions = Functions(limit, allow, cost)
        for name, function in functions._asdict().items():
            if function is not None:
                _check_function(name, function)
        rules = [replace(one, functions=functions) if one is changed else one for one in self.rules]
        return Policy(
            rules,
            exempt=self.exempt,
            settings=self.settings,
            version=self.version,
            warnings=self.warnings,
        )

    def match(self, request: Request) -> MatchedRules:
        """Every rule whose url covers the request. `HEAD` counts as `GET`."""
        try:
            path, mount = request.path, request.mount
        except AttributeError:
            if isinstance(request, Request):
                raise
            raise ConfigError(_no_request(request)) from None
        if mount:
            matched = self._matched if len(path + mount) > LONGEST_REMEMBERED else self._remembered
            return matched(path, request.method[:LONGEST_METHOD], mount)
        matched = self._remembered if len(path) <= LONGEST_REMEMBERED else self._matched
        return matched(path, request.method[:LONGEST_METHOD]) if self._by_method else matched(path)

    def readings(self, request: Request) -> tuple[PathReading, ...]:
        """Every way in which the path may be read, the canonical one first; none if they are too many."""
        found = readings_under_mounts(request.path, request.mount, self.settings.mounts)
        return () if found is None else found.all

    def why_not(self, rule: Rule, request: Request) -> str:
        """Why a rule is not asked about a request, in words."""
        path = printable(path_of_segments(request.segments))
        if not any(rule is other for other in self._matched(request.path, None, request.mount)):
            if rule.url.covers_path(request.segments):
                return f"{path} is excepted"
            return f"its url {rule.url.spelling} does not cover {path}"
        if rule.methods is not None and counted_as(request.method) not in rule.methods:
            return f"it is for {', '.join(sorted(rule.methods))} only"
        left_alone = skip_reason(rule, request, self.match(request).readings)
        if left_alone is not None:
            return left_alone
        if rule.missing == "skip" and rule.key_of(request) is None:
            return f"the request has no {rule.actor}, and missing is skip"
        return "another rule had denied already"


def _check_function(name: str, function: object) -> None:
    if not callable(function):
        raise ConfigError(f"{name}= must be a function of the request (got {shown(function)})")
    flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
    if flags & IS_COROUTINE:
        raise ConfigError(
            f"{name}= must be a plain function, since rules are matched without waiting (got an async one); "
            "write def in place of async def, or use rate_limit on a route"
        )


def _no_request(value: object) -> str:
    write = (
        f'Request("GET", {value!r})'
        if isinstance(value, str)
        else "Request(method, path, headers, query, peer)"
    )
    return f"request must be a Request (got {shown(value)}); write {write}"


class _Matching:
    """Which rules cover a path?"""

    def __init__(
        self,
        rules: tuple[Rule, ...],
        exempt: Sequence[tuple[Url, int]],
        mounts: tuple[PathReading, ...],
    ) -> None:
        self._tree = SegmentTree((rule.url, rule) for rule in rules)
        self._exempt = SegmentTree(exempt)
        self._mounts = mounts
        self._rank = {id(rule): rank for rank, rule in enumerate(rules)}
        self._branches = any(None in rule.url.segments for rule in rules)
        self._exempts = bool(exempt)
        self._plain = (
            not self._branches and not exempt and all(rule.methods is None for rule in rules)
        )
        """The last node on the way down a path says it all."""
        self._matches: dict[tuple[int, ...], MatchedRules] = {}

    def matched(self, path: str, method: str | None = None, mount: str = "") -> MatchedRules:
        if mount or self._mounts:
            readings = readings_under_mounts(path, mount, self._mounts)
            return self._match_of_several(path, readings, method)
        read = readings_of_path(path)
        if read is None or len(read) > 1:
            return self._match_of_several(path, None if read is None else Readings(read), method)
        (segments,) = read
        if self._plain:
            node, _ = self._tree.descend(segments)
            if node.match is None:
                node.match = self._match_of(node.so_far)
            match: MatchedRules = node.match
            return match
        rules = self._tree.covering(segments)
        if self._branches:
            rules = tuple(sorted(rules, key=self._rank_of))
        if self._exempts:
            left_alone = self._exempt.covering(segments)
            rules = tuple(rule for rule in rules if rule.block not in left_alone)
        return self._match_of(_of_method(rules, method))

    def _match_of_several(
        self, path: str, readings: Readings | None, method: str | None
    ) -> MatchedRules:
        """The rules of every reading; what is excepted is so in all that the client may have meant."""
        covering: dict[int, Rule] = {}
        if readings is None:
            covering = {id(rule): rule for rule in self._tree.within(words_of_path(path))}
        else:
            for reading in readings.all:
                covering |= {id(rule): rule for rule in self._tree.covering(reading)}
        rules = tuple(sorted(covering.values(), key=self._rank_of))
        if self._exempts and readings is not None:
            alone = (set(self._exempt.covering(reading)) for reading in readings.sent)
            left_alone = set.intersection(*alone)
            rules = tuple(rule for rule in rules if rule.block not in left_alone)
        rules = _of_method(rules, method)
        if any(rule.reads_path or rule.lists_read_path for rule in rules):
            return MatchedRules(rules, () if readings is None else readings.all)
        return self._match_of(rules)

    def _match_of(self, rules: tuple[Rule, ...]) -> MatchedRules:
        """The same for the same rules, whichever path they cover. By identity: a rule's own equality looks at every field of it."""
        ids = tuple(map(id, rules))
        match = self._matches.get(ids)
        if match is None:
            if len(self._matches) >= max(MOST_MATCHES, 2 * len(self._rank)):
                self._matches.clear()
            match = self._matches[ids] = MatchedRules(rules)
        return match

    def _rank_of(self, rule: Rule) -> int:
        return self._rank[id(rule)]


def _of_method(rules: tuple[Rule, ...], method: str | None) -> tuple[Rule, ...]:
    if method is None:
        return rules
    counted = counted_as(method)
    return tuple(rule for rule in rules if rule.methods is None or counted in rule.methods)


def counted_as(method: str) -> str:
    """`HEAD` counts as `GET`, and case does not matter."""
    upper = method.upper()
    return "GET" if upper == "HEAD" else upper


def _breadth(rule: Rule) -> tuple[int, int]:
    """Fewer segments are broader; of as many, those with fewer words of their own. Sorting keeps the file's order."""
    segments = rule.url.segments
    return len(segments), sum(segment is not None for segment in segments)
