"""What `peek`, `reset`, `unblock` and `override` have in common: which counter is meant, and in which store it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import click

from diana.actors import actor_from_spelling, key_from_written
from diana.cli.found_rule import ELSE, OPTIONS, KnownRule, Terms, chosen_rule, rules_from_policy
from diana.cli.store_argument import store_of_rule, store_url, words_from_arguments
from diana.core.actor import RuleContext, key_from_parts
from diana.core.client_address import Proxies
from diana.core.errors import ConfigError, StoreError
from diana.core.limit_adjustments import Override
from diana.core.policy import Policy
from diana.core.request import Request
from diana.core.rule_names import unknown_rule
from diana.core.url_pattern import url_from_spelling
from diana.redis_client.reply_errors import Failure
from diana.rules.loading import load_rules


class Look(NamedTuple):
    """What a store says to a charge that is not made: allowed or not, what would remain, and in µs the retry and the reset."""

    allowed: bool
    remaining: int
    retry_us: int
    reset_us: int


class CounterStore(Protocol):
    """A store, asked directly, without becoming a node."""

    @property
    def where(self) -> str:
        """For messages: which store and which namespace. Never with a password."""

    def published(self) -> list[KnownRule]:
        """The rules that nodes have published there."""

    def why_nothing(self) -> str:
        """Why there may be no such rule."""

    def check_rule(self, rule: KnownRule) -> None:
        """ClickException if this rule does not count there."""

    def override_of(self, rule: KnownRule, key: str) -> Override | None:
        """What stands in the store for this client."""

    def look(self, rule: KnownRule, terms: Terms, key: str, cost: int) -> Look: ...

    def reset(self, rule: KnownRule, key: str) -> bool:
        """Whether there was something to forget."""

    def override(self, rule: KnownRule, key: str, override: Override | None) -> bool:
        """Whether there was one before."""


class Counter(NamedTuple):
    """One rule, one client, and the store that counts."""

    store: CounterStore
    rule: KnownRule
    key: str
    values: tuple[str, ...]
    tier: str | None
    """As the operator says; None: it is not said."""
    namesakes: int = 0
    """Other rules of the same name."""


class Asked(NamedTuple):
    """What the command line says about the counter."""

    arguments: tuple[str, ...]
    rules: Path | None
    namespace: str | None
    tier: str | None
    choice: dict[str, str | None]
    """By OPTIONS, what tells a rule from others of its name."""


@contextmanager
def opened_counter(asked: Asked, *, counts: bool = True) -> Iterator[Counter]:
    """The counter; what goes wrong is said in a line. `counts`: the rule has to count in this store."""
    words = words_from_arguments(asked.arguments)
    try:
        if asked.rules is None:
            store = open_counters(store_url(words.url), asked.namespace)
            found = store.published()
            rule = _rule_of_store(store, found, words.rule, asked.choice)
        else:
            policy = load_rules(asked.rules)
            found = rules_from_policy(policy)
            rule = _rule_of_file(asked.rules, found, words.rule, asked.choice)
            written = _written_rule(policy, rule)
            namespace = _namespace(asked.namespace, policy, asked.rules)
            store = open_counters(store_of_rule(words.url, policy, written), namespace)
        if counts:
            store.check_rule(rule)
        _check_tier(asked.tier, rule)
        key = key_of_values(rule.actor, words.values)
        namesakes = sum(other.name == rule.name for other in found) - 1
        yield Counter(store, rule, key, words.values, asked.tier, namesakes)
    except (ConfigError, StoreError, Failure) as error:
        raise click.ClickException(str(error)) from None


def open_counters(url: str, namespace: str | None) -> CounterStore:
    """By the URL's scheme."""
    if url.lower().startswith("shared://"):
        from diana.cli.zone_counters import ZoneCounters

        return ZoneCounters(url)
    if url.lower().startswith("memory://"):
        raise click.ClickException(
            "memory:// counts in the memory of each process, which no command can read; "
            "in code there are guard.peek and guard.reset, and shared://NAME can be read"
        )
    from diana.cli.redis_counters import RedisCounters

    return RedisCounters(url, namespace)


def _rule_of_store(
    store: CounterStore, found: list[KnownRule], name: str, choice: dict[str, str | None]
) -> KnownRule:
    rule = chosen_rule(name, found, choice)
    if rule is not None:
        return rule
    names = sorted({known.distinct_name for known in found})
    said = unknown_rule(name, names) if names else f"there is no rule {name!r}"
    raise click.ClickException(f"{said}\nsearched: {store.where}\n{store.why_nothing()}")


def _rule_of_file(
    file: Path, found: list[KnownRule], name: str, choice: dict[str, str | None]
) -> KnownRule:
    rule = chosen_rule(name, found, choice)
    if rule is None:
        names = [known.distinct_name for known in found]
        raise click.ClickException(f"{unknown_rule(name, names)}\nsearched: {file}")
    return rule


def _written_rule(policy: Policy, known: KnownRule) -> Any:
    return next(rule for rule in policy.rules if rule.meter is known.meter)


def _namespace(given: str | None, policy: Policy, file: Path) -> str:
    written = policy.settings.namespace
    if given is not None and given != written:
        raise click.UsageError(
            f"{file} has namespace {written!r}, and --namespace says {given!r}; remove --namespace"
        )
    return written


def _check_tier(tier: str | None, rule: KnownRule) -> None:
    if tier is None or not rule.is_complete:
        return
    known = [*rule.tiers, ELSE]
    if not rule.tiers:
        raise click.UsageError(f"rule {rule.name!r} has no tiers; remove --tier")
    if tier not in known:
        raise click.UsageError(
            f"rule {rule.name!r} has no tier {tier!r}; write one of {', '.join(known)}"
        )


def key_of_values(actor: str, values: Sequence[str]) -> str:
    """The key of these values of an actor; of a combination, in the order in which it is shown."""
    keys = []
    given = list(values)
    for spelling in actor.split(" + "):
        word, _, name = spelling.partition(" ")
        url = url_from_spelling(
            f"/{{{name.removesuffix(' as int')}}}" if word == "segment" else "/"
        )
        spelled = actor_from_spelling(spelling, RuleContext(url, Proxies(), _nobody, _nobody))
        if spelled.actor.constant is not None:
            keys.append(spelled.key_from(spelled.actor.constant))
            continue
        if not given:
            raise click.UsageError(f"the rule counts by {actor}; write a VALUE for each")
        value = given.pop(0)
        key = key_from_written(spelled, value)
        if key is None:
            raise click.UsageError(f"{value!r} is no {spelling}")
        keys.append(key)
    if given:
        raise click.UsageError(f"the rule counts by {actor}; {given[0]!r} is one VALUE too many")
    return keys[0] if len(keys) == 1 else key_from_parts(keys)


def counter_arguments(verb: Callable[..., Any]) -> Callable[..., Any]:
    """`[URL] RULE [VALUE]...` and what chooses the rule, as one Asked."""

    def asking(
        arguments: tuple[str, ...],
        rules: Path | None,
        namespace: str | None,
        tier: str | None,
        **others: Any,
    ) -> Any:
        choice = {field: others.pop(field) for field in OPTIONS}
        return verb(Asked(arguments, rules, namespace, tier, choice), **others)

    asking.__doc__, asking.__name__ = verb.__doc__, verb.__name__
    asking.__click_params__ = getattr(verb, "__click_params__", [])  # type: ignore[attr-defined]
    decorated: Callable[..., Any] = asking
    for field in reversed(OPTIONS):
        help_text = f"The rule's {field}, if several rules have this name."
        decorated = click.option(f"--{field}", default=None, help=help_text)(decorated)
    for decorate in (
        click.option("--tier", default=None, help="The client's tier, if the rule has tiers."),
        click.option(
            "--rules",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            default=None,
            help="The rules file; else what nodes have published in the store.",
        ),
        click.option(
            "--namespace",
            default=None,
            help="Prefix of all keys. [default: the rules file's, else the URL's, else diana]",
        ),
        click.argument("arguments", nargs=-1, metavar="[URL] RULE [VALUE]..."),
    ):
        decorated = decorate(decorated)
    return decorated


def _nobody(_: Request) -> str | None:
    return None
