"""Where a client stands: under which numbers it is asked, and what the store says to that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from diana.cli.found_rule import ELSE, Terms, terms_of_override
from diana.cli.output import Line, styled
from diana.cli.store_admin import Counter, Look
from diana.core.decision import NEVER, UNKNOWN
from diana.core.errors import ConfigError
from diana.core.limit_adjustments import Override


class Standing(NamedTuple):
    """What the store says to a client under these numbers."""

    why: str | None
    """Why these numbers: `tier pro`, `an override`; None: they are the rule's own."""
    tier: str | None
    terms: Terms
    look: Look
    """What the store says to a request now."""
    left: int
    """How much would pass now. The charge of the look, which is not made, is not taken off."""
    reset_us: int
    """Until the counter is as if it had never been used; without that charge, too."""


class Standings(NamedTuple):
    """One, or one for each tier if the client's tier is not known."""

    each: tuple[Standing, ...]
    override: Override | None
    """Of the store."""

    @property
    def agreed(self) -> Standing | None:
        """The one, if it is known which holds."""
        return self.each[0] if len(self.each) == 1 else None


def standings(counter: Counter) -> Standings:
    """In the order of a node: the store's override, the file's, the tier's, the rule's own."""
    store, rule, key, tier = counter.store, counter.rule, counter.key, counter.tier
    override = store.override_of(rule, key)
    if override is not None:
        try:
            terms = terms_of_override(rule, override)
            return Standings((_standing(counter, "an override", None, terms),), override)
        except ConfigError:
            pass  # it is not for this algorithm, so nodes do not obey it
    written = rule.override_of(key)
    if written is not None:
        why = "an override of the rules file"
        return Standings((_standing(counter, why, None, written),), override)
    if not rule.tiers:
        return Standings((_standing(counter, None, None, rule.own),), override)
    tiers = {**rule.tiers, ELSE: rule.own}
    asked = tiers if tier is None else {tier: tiers[tier]}
    found = [_standing(counter, f"tier {name}", name, terms) for name, terms in asked.items()]
    return Standings(tuple(found), override)


def _standing(counter: Counter, why: str | None, tier: str | None, terms: Terms) -> Standing:
    store, rule, key = counter.store, counter.rule, counter.key
    if terms.most == 0:
        return Standing(why, tier, terms, Look(False, 0, NEVER, 0), 0, 0)
    look = store.look(rule, terms, key, rule.cost)
    now = store.look(rule, terms, key, 0) if look.allowed else look
    return Standing(why, tier, terms, look, now.remaining, now.reset_us)


def assumptions(counter: Counter) -> Iterator[str]:
    """What a command cannot know about this client."""
    rule = counter.rule
    if not rule.is_complete:
        yield (
            "the store does not say what the rule costs, nor which tiers and overrides it has; assumed: cost 1, none; "
            "add --rules FILE"
        )
    if rule.unlisted:
        yield (
            f"the rules file has overrides for {rule.unlisted:,} clients, which are not looked at; add --rules FILE"
        )
    if rule.by_code:
        names = " and ".join(rule.by_code)
        yield f"code decides the {names} of each request; assumed: what the rule says"
    if rule.fields["scope"] == "divided":
        yield "each node has a share of this limit; shown is the whole limit"


def words_of_look(standing: Standing) -> Line:
    """`✓ 2 of 3 left`, or why not and until when."""
    look = standing.look
    if look.allowed:
        most = standing.terms.most
        return (styled("✓", "green"), f" {standing.left}{f' of {most}' if most else ''} left")
    denied = styled("✗ denied", "red")
    if look.retry_us == UNKNOWN:
        return (denied, ", all slots are taken")
    if look.retry_us == NEVER:
        zero = standing.terms.most == 0
        return (denied, f", always: {'the limit is 0' if zero else 'the cost is above the limit'}")
    return (denied, f", retry after {seconds(look.retry_us)}")


def seconds(micros: int) -> str:
    return "never" if micros == NEVER else f"{micros / 1_000_000:g} s"


def json_of_standing(standing: Standing | None) -> dict[str, Any]:
    """Nulls if it is not known which of several holds."""
    if standing is None:
        names = ("limit", "most", "allowed", "remaining", "retry_after", "reset_after")
        return dict.fromkeys(names)
    look = standing.look
    return {
        "limit": standing.terms.limit,
        "most": standing.terms.most,
        "allowed": look.allowed,
        "remaining": standing.left,
        "retry_after": None if look.retry_us < 0 else look.retry_us / 1_000_000,
        "reset_after": standing.reset_us / 1_000_000,
    }
