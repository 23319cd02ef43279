"""Under which numbers a request is charged: a rule's own, its tier's, or those of a single client.

Which of them is asked is no part of a counter's identity: who changes plans keeps what was counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from diana.core.actor import Identity
from diana.core.charge import checked_cost
from diana.core.counter import CounterGroup, CounterSpec, meter_from_limit
from diana.core.errors import ConfigError
from diana.core.limit import (
    ConcurrencyLimit,
    Limit,
    checked_limit,
    checked_places,
    limit_from_spelling,
)
from diana.core.path_readings import PathReading
from diana.core.request import Contradiction, Request
from diana.core.zero import params_of_limit

if TYPE_CHECKING:
    from diana.core.rule import Rule

MOST_BY_CODE = 10_000
"""Limits that functions of the request have returned, made ready."""


class Tiers(NamedTuple):
    """Numbers by what a request's tier is; for all others there is the rule's own meter."""

    identity: Identity
    meters: Mapping[str, CounterSpec]

    def meter(
        self, request: Request, otherwise: CounterSpec, note: Callable[[Exception], None]
    ) -> CounterSpec:
        """A tier that is unknown, missing, or cannot be found is `else`; `note` takes what code raised or returned wrongly."""
        try:
            tier = self.identity(request)
            if tier is not None and not isinstance(tier, str):
                raise TypeError(f"a tier is a str, not {type(tier).__name__}")
        except Contradiction:
            return otherwise
        except Exception as error:
            note(error)
            return otherwise
        return otherwise if tier is None else self.meters.get(tier, otherwise)


class Override(NamedTuple):
    """Other numbers for a single client."""

    rpu: int
    burst: int | None = None
    until_us: int | None = None
    """Until when, by the wall clock; None: without end."""


NoteError = Callable[["Rule", Request, str, Exception], None]
"""Takes note of what one of the functions below raised, by its name; the request is decided without it."""


class Functions(NamedTuple):
    """What code decides for each request, instead of a number in a file. If one raises, the request is decided as if it were not there."""

    limit: Callable[[Request], Any] | None = None
    """Gives a spelling such as `100/minute`."""
    allow: Callable[[Request], Any] | None = None
    """True: the rule leaves this request alone."""
    cost: Callable[[Request], Any] | None = None


def _ignore_error(rule: Rule, request: Request, function: str, error: Exception) -> None:
    """Where nothing is decided."""


def skip_reason(
    rule: Rule,
    request: Request,
    readings: tuple[PathReading, ...] | None,
    note: NoteError = _ignore_error,
    note_identity: NoteError = _ignore_error,
) -> str | None:
    """Which list says that a rule is not for this request; None if it is."""

    def note_entry(name: str) -> Callable[[str, Exception], None]:
        return lambda spelling, error: note_identity(
            rule, request, f"{spelling} of the {name} list", error
        )

    for roster in rule.allow:
        found = roster.leaves_alone(request, readings, note_entry("allow"))
        if found is not None:
            return f"its allow list has the request's {found}"
    for roster in rule.only:
        if not roster.is_for(request, readings, note_entry("only")):
            listed = " or ".join(entry.spelling for entry in roster.entries)
            return f"its only list has not the request's {listed}"
    if rule.functions is not None and _is_allowed_by_code(rule, rule.functions, request, note):
        return "its allow function says so"
    return None


def _is_allowed_by_code(
    rule: Rule, functions: Functions, request: Request, note: NoteError
) -> bool:
    if functions.allow is None:
        return False
    try:
        return bool(_value(functions.allow, request))
    except Exception as error:
        note(rule, request, "allow", error)
        return False


def _value(function: Callable[[Request], Any], request: Request) -> Any:
    value = function(request)
    if hasattr(value, "__await__"):
        if hasattr(value, "close"):
            value.close()  # it never runs, and should not warn of that
        raise TypeError("it returned an awaitable; give a plain function")
    return value


def meter_with(meter: CounterSpec, override: Override) -> CounterSpec:
    """The same counter under other numbers."""
    checked = checked_places if isinstance(meter.limit, ConcurrencyLimit) else checked_limit
    limit = checked(override.rpu, meter.limit.unit_us)
    options = dict(meter.options)
    if override.burst is not None:
        if "burst" not in meter.algorithm.options:
            raise ConfigError(
                f"{meter.algorithm.spelling} ({meter.algorithm.code}) has no burst; remove it",
                path="burst",
            )
        options["burst"] = override.burst
    params = params_of_limit(meter.algorithm, limit, options)
    family = family_of(meter)
    other = CounterSpec(meter.id, limit, meter.algorithm, params, options, meter.when_down, family)
    family.include(other)
    return other


def cost_never_passes(cost: int, most: int) -> str:
    """What is said of an override under which the rule's cost is always denied."""
    return f"the rule's cost {cost} can never pass: the most is {most}; write more"


def family_of(meter: CounterSpec) -> CounterGroup:
    """The one it belongs to, from now on if not before."""
    if meter.family is None:
        family = CounterGroup()
        family.include(meter)
        family.zero = meter if meter.denies_all else None
        meter.family, meter.compiled = family, None
    return meter.family


class LiveOverride:
    """An override and, once it was asked for, its meter: beside the meter of the rule that asked."""

    __slots__ = ("beside", "override", "ready", "until_us")

    def __init__(self, override: Override) -> None:
        self.override = override
        self.until_us = override.until_us
        self.beside: CounterSpec | None = None
        self.ready: CounterSpec | None = None
        """None: it is not for this algorithm, so the rule's own numbers hold."""

    def make_ready(self, own: CounterSpec) -> CounterSpec | None:
        try:
            self.ready = meter_with(own, self.override)
        except ConfigError:
            self.ready = None
        self.beside = own
        return self.ready


NO_OVERRIDES: dict[str, LiveOverride] = {}


class LiveOverrides:
    """Overrides that come and go while rules stay: from code, or from the store. By the rule's distinct name and the key that is counted.

    One under a name that several rules have, because an edit added a rule of this name, applies to each of them that has none of its own.
    """

    def __init__(self) -> None:
        self.by_rule: dict[str, dict[str, LiveOverride]] = {}
        """Empty if there is none at all: looked at for every request."""

    def __len__(self) -> int:
        return sum(map(len, self.by_rule.values()))

    def set(self, rule: str, key: str, override: Override | None) -> None:
        """None: no longer."""
        if override is not None:
            self.by_rule.setdefault(rule, {})[key] = LiveOverride(override)
            return
        of_rule = self.by_rule.get(rule, {})
        of_rule.pop(key, None)
        if not of_rule:
            self.by_rule.pop(rule, None)

    def set_for(self, rule: Rule, key: str, override: Override | None) -> None:
        """Under the name that no other rule has; what is removed may stand under a name that other rules have, too."""
        own = rule.distinct_name
        is_shared = override is None and key not in self.by_rule.get(own, NO_OVERRIDES)
        self.set(rule.name if is_shared else own, key, override)

    def find(self, rule: Rule, key: str) -> LiveOverride | None:
        if rule.label is not None:
            found = self.by_rule.get(rule.label, NO_OVERRIDES).get(key)
            if found is not None:
                return found
        return self.by_rule.get(rule.name, NO_OVERRIDES).get(key)

    def of_rule(self, rule: Rule) -> dict[str, LiveOverride]:
        shared = self.by_rule.get(rule.name, NO_OVERRIDES)
        return {**shared, **self.by_rule.get(rule.distinct_name, NO_OVERRIDES)}

    def replace(self, others: LiveOverrides) -> None:
        """All at once; whoever holds on to this sees the others from now on."""
        self.by_rule = others.by_rule


class MetersByCode:
    """Limits as functions return them, made ready once."""

    def __init__(self) -> None:
        self._meters: dict[tuple[CounterSpec, str], CounterSpec] = {}

    def meter(self, own: CounterSpec, spelling: str) -> CounterSpec:
        known = self._meters.get((own, spelling))
        if known is None:
            limit = limit_from_spelling(spelling)
            if isinstance(limit, ConcurrencyLimit) is not isinstance(own.limit, ConcurrencyLimit):
                raise ConfigError(
                    f"{spelling!r} where the rule says {own.limit}; one counts how often, the other how many at once"
                )
            if isinstance(limit, ConcurrencyLimit) or limit.unit_us == own.limit.unit_us:
                known = meter_with(own, Override(limit.rpu))
            else:
                known = _of_another_unit(own, limit)
            if len(self._meters) >= MOST_BY_CODE:
                self._meters.clear()
            self._meters[own, spelling] = known
        return known


def _of_another_unit(own: CounterSpec, limit: Limit) -> CounterSpec:
    """Another counter: what was counted in a minute says nothing of an hour."""
    name = own.id.removesuffix(meter_from_limit("", own.limit, own.algorithm, own.options).id)
    return meter_from_limit(name, limit, own.algorithm, own.options, own.when_down)


def cost_by_code(rule: Rule, request: Request, note: NoteError = _ignore_error) -> int:
    """Of a rule that has functions."""
    functions = rule.functions
    if functions is None or functions.cost is None:
        return rule.cost
    try:
        return checked_cost(_value(functions.cost, request))
    except Exception as error:
        note(rule, request, "cost", error)
        return 1


def meter_by_code(
    rule: Rule, request: Request, meters: MetersByCode, note: NoteError = _ignore_error
) -> CounterSpec:
    """Of a rule that has functions."""
    functions = rule.functions
    if functions is None or functions.limit is None:
        return rule.meter
    try:
        return meters.meter(rule.meter, _value(functions.limit, request))
    except Exception as error:
        note(rule, request, "limit", error)
        return rule.meter
