"""The rules that apply to a request, and all that is known of them before one of them is asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from diana.core.counter import CounterSpec
from diana.core.limit import uses_slots
from diana.core.path_readings import PathReading
from diana.core.rule import Rule

MOST_PICKED = 64
"""Selections remembered per match: which rules have no identity to count by is up to the client."""

HERE = ("local", "divided")
"""Scopes that count in the local store."""
LEASED = "leased"
"""Of the fleet, with permits that are here in advance."""

_NONE: frozenset[str] = frozenset()


class QuotaHeaders(NamedTuple):
    """What header lines say of the enforced rules, whatever those decide."""

    policy: tuple[bytes, bytes]
    """The header line `RateLimit-Policy`."""
    template: bytes
    """The value of `RateLimit`, with `%d` for what remains and for the seconds of each rule."""
    paces: tuple[tuple[int, float], ...]
    """Of each: in how many µs all of it comes back, and one more request; (0, 0) if all comes back at once."""
    places: tuple[bool, ...] | None = None
    """Of each, whether it is so many at once: then no time is told. None: none of them is."""


class MatchedRules:
    """Rules in the order in which they are asked. One and the same for all paths that the same rules cover.

    `local`, `leased` and `shared` are the places of the enforced rules by the store that counts for them, `shadows` those of the others.
    """

    __slots__ = (
        "_picked",
        "announcement",
        "announcements",
        "asked",
        "by_outcome",
        "denying",
        "drops",
        "enforced",
        "holds",
        "kinds",
        "leased",
        "local",
        "meters",
        "one_call",
        "readings",
        "refuses",
        "repeats",
        "rules",
        "shadows",
        "shared",
        "varies",
    )

    def __init__(
        self, rules: tuple[Rule, ...], readings: tuple[PathReading, ...] | None = None
    ) -> None:
        self.rules = rules
        self.readings = readings
        """All readings of the path, if it has several and a rule counts by them; empty if they are too many. None: just the one."""
        self.repeats = False
        """A rule stands here more than once: it counts by the path, which has several readings."""
        self.enforced = _places(rule.mode == "enforce" for rule in rules)
        self.shadows = _places(rule.mode != "enforce" for rule in rules)
        self.local = tuple(place for place in self.enforced if rules[place].scope in HERE)
        self.leased = tuple(place for place in self.enforced if rules[place].scope == LEASED)
        self.shared = tuple(
            place for place in self.enforced if rules[place].scope not in (*HERE, LEASED)
        )
        self.drops = tuple(place for place in self.enforced if rules[place].drop is not None)
        """Where chance may decide first."""
        self.meters = tuple([rule.meter for rule in rules])
        """The rules' own; a request may be asked under others."""
        self.varies = any(rule.varies or rule.scope == "divided" for rule in rules)
        """Which of them are asked, and under which numbers, is another question for every request."""
        self.asked = tuple(
            [(rule, rule.has_lists, rule.key_of, rule.meter, rule.cost) for rule in rules]
        )
        """Each with whether it leaves some clients alone, and what is wanted of it for every request: its key, its meter, its cost."""
        self.denying = tuple(place for place in self.enforced if rules[place].deny)
        """Where a list of clients denies first."""
        self.refuses = any(rule.meter.denies_all for rule in rules)
        """A rule's own limit is 0."""
        self.by_outcome = any(rule.charge_on is not None for rule in rules)
        """Some charge by the answer's status."""
        self.holds = any(uses_slots(rule.meter.algorithm) for rule in rules)
        """What some of them admit takes a place, to be given back."""
        kinds = sum(map(bool, (self.local, self.leased, self.shared)))
        self.one_call = not self.shadows and kinds <= 1
        """One question to one store answers for all of them."""
        self.kinds: frozenset[str] = _NONE
        """Identities that code may have to find for them."""
        self.announcement: QuotaHeaders | None = None
        """Written by the first answer."""
        self.announcements: dict[tuple[CounterSpec, ...], QuotaHeaders] = {}
        """Those under other numbers than the rules' own."""
        self._picked: dict[tuple[int, ...], MatchedRules] | None = None
        for rule in rules:
            if not rule.kinds <= self.kinds:
                self.kinds |= rule.kinds

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def pick(self, places: tuple[int, ...]) -> MatchedRules:
        """The rules at these places, which may skip some and repeat others."""
        if self._picked is None:
            self._picked = {}
        known = self._picked.get(places)
        if known is None:
            known = MatchedRules(tuple(self.rules[place] for place in places))
            known.repeats = len(set(places)) < len(places)
            if len(self._picked) < MOST_PICKED:
                self._picked[places] = known
        return known


def _places(flags: Iterator[bool]) -> tuple[int, ...]:
    return tuple(place for place, flag in enumerate(flags) if flag)
