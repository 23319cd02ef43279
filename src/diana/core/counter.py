"""A limit with a name, made ready for its algorithm: all that a store needs to know to count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diana.core.contracts import Algorithm, Decide, Params
from diana.core.duration import spelling_from_micros
from diana.core.errors import ConfigError
from diana.core.limit import ConcurrencyLimit, Limit, uses_slots
from diana.core.zero import ZeroParams, params_of_limit

if TYPE_CHECKING:
    from diana.core.rule_summary import RuleFacts

AT_ONCE = "at once"
"""Where other counters have their unit."""


class CounterSpec:
    """Charges with the same `id` and key meet in one counter.

    The id holds what a counter's state depends on: the name, the algorithm, the unit, and options such as `slices`. It does
    not hold `rpu` and `burst`, so that editing a limit keeps what was counted.
    """

    # Not a dataclass: importing those takes half as long as all of `import diana`.
    __slots__ = (
        "algorithm",
        "compiled",
        "decide",
        "denies_all",
        "facts",
        "family",
        "id",
        "limit",
        "options",
        "params",
        "when_down",
    )

    def __init__(
        self,
        id: str,
        limit: Limit,
        algorithm: Algorithm,
        params: Params,
        options: Mapping[str, Any],
        when_down: str = "local",
        family: CounterGroup | None = None,
    ) -> None:
        self.id = id
        self.limit = limit
        self.denies_all = limit.rpu == 0
        """A limit of 0: no store is to be asked."""
        self.algorithm = algorithm
        self.params = params
        self.options = options
        self.when_down = when_down
        """Should the store be lost: `local` counts here, `open` lets pass, `closed` denies."""
        self.family = family
        """What it shares with the other meters of its rule; None if it is the only one."""
        self.decide: Decide = algorithm.decide
        self.facts: RuleFacts | None = None
        """What its rule says beside it; None if it is no rule's own, or counts in no store."""
        self.compiled: Any = None
        """What the kernels in C have made of it, once they were asked."""

    def __repr__(self) -> str:
        return f"Meter({self.id!r}, {self.limit})"


class CounterGroup:
    """The meters that count in one rule's counters: its tiers, its overrides."""

    __slots__ = ("_lowest", "_widest", "deny_memory_us", "first", "longest", "tiers", "zero")

    def __init__(self, deny_memory_us: int | None = None) -> None:
        self.tiers: tuple[LimitWithOptions, ...] = ()
        """All that one and the same key may be asked under, in any order; empty if it is always the same."""
        self.deny_memory_us = deny_memory_us
        """For how long a denial may be remembered elsewhere than in the counter; None: as long as the counter itself says so."""
        self.first: CounterSpec | None = None
        """The one that others are told of, unless `zero` is."""
        self.zero: CounterSpec | None = None
        """The rule's own meter, if it is 0 and none of the rules file's tiers and overrides counts."""
        self.longest: CounterSpec | None = None
        """By which a counter is forgotten: as slow as the slowest of them, as large as the largest."""
        self._lowest: LimitWithOptions | None = None
        self._widest: LimitWithOptions | None = None

    @property
    def extremes(self) -> tuple[LimitWithOptions, ...]:
        """The slowest and the largest of them."""
        return tuple(terms for terms in (self._lowest, self._widest) if terms is not None)

    def include(self, meter: CounterSpec) -> None:
        """One more. A key may be forgotten only when it is as good as never seen to each of them. A limit of 0 reads and writes no key."""
        if meter.denies_all:
            return
        terms = (meter.limit, meter.options)
        size = _size(terms)
        lowest, widest = self._lowest or terms, self._widest or terms
        if self.first is None:
            self.first = self.longest = meter
        elif terms[0].rpu < lowest[0].rpu or size > _size(widest):
            lowest = min(lowest, terms, key=lambda one: one[0].rpu)
            widest = max(widest, terms, key=_size)
            try:
                params = params_of_tiers(meter.algorithm, (lowest, widest))[0]
            except (
                ConfigError
            ):  # too far apart to be counted in one scale: the slowest alone comes close
                params = meter.algorithm.params(lowest[0], **lowest[1])
            self.longest = CounterSpec(meter.id, lowest[0], meter.algorithm, params, lowest[1])
        self._lowest, self._widest = lowest, widest


LimitWithOptions = tuple[Limit, Mapping[str, Any]]
"""A limit and an algorithm's options."""


def _size(terms: LimitWithOptions) -> int:
    limit, options = terms
    burst: int | None = options.get("burst")
    return limit.rpu if burst is None else burst


def params_of_tiers(algorithm: Algorithm, tiers: Sequence[LimitWithOptions]) -> list[Params]:
    """Of limits that one and the same counter may be asked under, in any order."""
    together = getattr(algorithm, "params_of_tiers", None)
    counted = [terms for terms in tiers if terms[0].rpu]
    if together is None or not counted:
        return [params_of_limit(algorithm, *terms) for terms in tiers]
    found: Iterator[Params] = iter(together(counted))
    return [next(found) if terms[0].rpu else params_of_limit(algorithm, *terms) for terms in tiers]


def meter_from_limit(
    name: str,
    limit: Limit,
    algorithm: Algorithm,
    options: Mapping[str, Any],
    when_down: str = "local",
) -> CounterSpec:
    """Check the options and compute everything that can be computed before the first request."""
    for option in options:
        if option not in algorithm.options:
            raise ConfigError(_foreign(option, algorithm))
    given = {option: value for option, value in options.items() if value is not None}
    params = params_of_limit(algorithm, limit, given)
    unit = spelling_from_micros(limit.unit_us)
    if uses_slots(algorithm):
        # For how long a place is held is no part of it: editing that keeps who is inside.
        limit, unit = ConcurrencyLimit(*limit), AT_ONCE
    parts = [name, algorithm.code, unit]
    parts += [f"{option}={getattr(params, option)}" for option in algorithm.identity]
    return CounterSpec("|".join(parts), limit, algorithm, params, given, when_down)


def countable(meter: CounterSpec) -> CounterSpec:
    """One that a store can be asked about: of a limit of 0, one on the same counter, for `reset`."""
    if not isinstance(meter.params, ZeroParams):
        return meter
    limit = Limit(1, meter.limit.unit_us)
    return CounterSpec(meter.id, limit, meter.algorithm, meter.params.like, {}, meter.when_down)


def escaped(part: str) -> str:
    """The bar separates the parts of a counter's identity, so none of them may hold one."""
    return part.replace("%", "%25").replace("|", "%7C")


def unescaped(part: str) -> str:
    """What `escaped` was given."""
    return part.replace("%7C", "|").replace("%25", "%")


def _foreign(option: str, algorithm: Algorithm) -> str:
    known = ", ".join(algorithm.options) or "none"
    return (
        f"{option!r} is no option of {algorithm.spelling} ({algorithm.code}); its options: {known}"
    )
