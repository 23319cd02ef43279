"""What a file says of plans and exceptions, made ready: meters of tiers, overrides by key, lists of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from diana.actors import Spelled, actor_from_spelling, key_from_written
from diana.core.actor import Identity, RuleContext
from diana.core.address import Proxies, network_from_spelling
from diana.core.contracts import Algorithm
from diana.core.duration import SECOND_US
from diana.core.errors import ConfigError, shown
from diana.core.limit import ConcurrencyLimit, Limit, checked_limit, checked_places
from diana.core.meter import CounterGroup, CounterSpec, meter_from_limit, params_of_tiers
from diana.core.roster import AllowList, Entry, entry_of_networks, entry_of_values
from diana.core.rule import OverrideMeter
from diana.core.terms import Override, meter_with
from diana.core.url import Url
from diana.sources.document.plans import ByTier, OverrideFields, RosterFields
from diana.sources.document.reader import ErrorCollector, Field, placed

DENY_MEMORY_US = SECOND_US

KeyFrom = Callable[[str], str]


def tier_terms(
    rpu: int | ByTier, unit_us: int, options: dict[str, Any], at_once: bool = False
) -> dict[str | None, tuple[Limit, dict[str, Any]]]:
    """A limit and options for each tier; None: for who has none of them. `at_once`: so many places, each held for at most a unit."""
    checked = checked_places if at_once else checked_limit
    split = [value for value in (rpu, *options.values()) if isinstance(value, ByTier)]
    tiers: list[str | None] = [None, *dict.fromkeys(tier for one in split for tier in one.numbers)]
    return {
        tier: (
            checked(rpu.of(tier) if isinstance(rpu, ByTier) else rpu, unit_us),
            {
                name: value.of(tier) if isinstance(value, ByTier) else value
                for name, value in options.items()
            },
        )
        for tier in tiers
    }


def meters_of_terms(
    identity: str,
    terms: dict[str | None, tuple[Limit, dict[str, Any]]],
    algorithm: Algorithm,
    when_down: str,
) -> dict[str | None, CounterSpec]:
    """One counter for all of them. What such a rule denies may be given back, or be another tier's to change: it is asked again soon."""
    limit, options = terms[None]
    id = identity + meter_from_limit("", limit, algorithm, options, when_down).id
    family = CounterGroup(deny_memory_us=DENY_MEMORY_US)
    several = tuple(terms.values())
    counted = tuple(one for one in several if one[0].rpu)
    family.tiers = counted if len(counted) > 1 else ()
    meters = {
        tier: CounterSpec(id, limit, algorithm, params, options, when_down, family)
        for (tier, (limit, options)), params in zip(
            terms.items(), params_of_tiers(algorithm, several), strict=True
        )
    }
    for meter in meters.values():
        family.include(meter)
    return meters


def key_maker(actors: list[Spelled]) -> KeyFrom | None:
    """From a value of the actor to its key; None where a key has several parts, or is the same for all."""
    if len(actors) != 1 or actors[0].actor.constant is not None:
        return None
    spelled = actors[0]

    def key(value: str) -> str:
        found = key_from_written(spelled, value)
        if found is None:
            raise ConfigError(f"{shown(value)} is no {spelled.spelling}; write one")
        return found

    return key


def compiled_overrides(
    written: dict[str, OverrideFields],
    actors: list[Spelled],
    meter: CounterSpec,
    cost: int,
    mistakes: ErrorCollector,
) -> dict[str, OverrideMeter]:
    """By the key that is counted; those with the same numbers share a meter."""
    if not written:
        return {}
    if len(actors) != 1 or actors[0].actor.constant is not None:
        raise ConfigError(
            "overrides are by the value of one actor; write actor: account, or another single one"
        )
    known: dict[tuple[int, int | None], CounterSpec] = {}
    found: dict[str, OverrideMeter] = {}
    word = "most" if isinstance(meter.limit, ConcurrencyLimit) else "rpu"
    for value, (rpu, burst, until_us, place, written_as) in written.items():
        key = key_from_written(actors[0], value)
        try:
            if written_as != word:
                raise ConfigError(
                    f"the rule says {meter.limit}; write {word} instead of {written_as}"
                )
            if key is None:
                raise ConfigError(f"{shown(value)} is no {actors[0].spelling}; write one")
            if key in found:
                raise ConfigError(f"{shown(value)} stands here twice; keep one")
            other = known.get((rpu, burst))
            if other is None:
                other = known[rpu, burst] = meter_with(meter, Override(rpu, burst))
            if cost > other.params.limit and not other.denies_all:
                raise ConfigError(
                    f"the rule's cost can never pass: the most is {other.params.limit}; write more"
                )
            found[key] = OverrideMeter(other, until_us)
        except ConfigError as error:
            mistakes.add(placed(error, place, place.path))
    return found


class RosterCompiler:
    """`allow` and `only`."""

    def __init__(
        self, proxies: Proxies, identities: dict[str, Identity], mistakes: ErrorCollector
    ) -> None:
        self._proxies = proxies
        self._identities = identities
        self._mistakes = mistakes

    def rosters(self, url: Url, lists: list[list[RosterFields] | None]) -> tuple[AllowList, ...]:
        """The block's list and the rule's own."""
        return tuple(
            AllowList(tuple(entries))
            for listed in lists
            if listed and (entries := list(self._entries(url, listed)))
        )

    def _entries(self, url: Url, listed: list[RosterFields]) -> Iterator[Entry]:
        surroundings = RuleContext(url, self._proxies, **self._identities)
        for actor, values, place in listed:
            try:
                yield self._entry(actor, values, surroundings)
            except ConfigError as error:
                self._mistakes.add(placed(error, place, place.path))

    def _entry(self, actor: str, values: list[Field], surroundings: RuleContext) -> Entry:
        spelled = actor_from_spelling(actor, surroundings)
        if spelled.actor.constant is not None:
            raise ConfigError(f"{spelled.spelling} is everybody together; write another actor")
        if spelled.spelling == "ip":
            networks = []
            for field in values:
                try:
                    networks.append(network_from_spelling(field.value))
                except ConfigError as error:
                    raise placed(error, field.place, field.place.path) from None
            return entry_of_networks(tuple(networks), self._proxies)
        canonical = spelled.actor.canonical
        written = [field.value for field in values]
        return entry_of_values(
            spelled.spelling,
            spelled.identity,
            spelled.key_from,
            [(canonical(one) or one) if canonical else one for one in written],
            spelled.actor.reads_path,
            spelled.actor.kinds,
        )
