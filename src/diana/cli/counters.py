"""What `peek`, `reset`, `unblock` and `override` have in common: which counter of a store is meant."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from diana.actors import actor_from_spelling, key_from_written
from diana.core.actor import Surroundings
from diana.core.address import Proxies
from diana.core.duration import micros_from_spelling
from diana.core.errors import ConfigError
from diana.core.key import key_from_parts
from diana.core.limit import Limit
from diana.core.meter import AT_ONCE, Meter, meter_from_limit
from diana.core.plugins import algorithms
from diana.core.policy import unknown_rule
from diana.core.request import Request
from diana.core.terms import Override, meter_with
from diana.core.url import url_from_spelling
from diana.sources.rules import load_rules


class Known(NamedTuple):
    """A rule as a node has published it, or as a file says."""

    name: str
    actor: str
    meter: Meter
    published: bytes | None = None
    """Its limit as the scripts take it."""


class Counter(NamedTuple):
    """One rule, one client."""

    rule: Known
    key: str
    wire_key: bytes


class Tool:
    """A store, asked directly, without becoming a node."""

    def __init__(self, url: str, namespace: str | None) -> None:
        from diana.stores.redis.url import address_from_url

        self._address = address_from_url(url)
        self.namespace = namespace or self._address.namespace or "diana"

    def say(self, key: bytes, steps: Any) -> Any:
        """To the server that has the key."""
        from diana.stores.redis.connection.budget import Budget
        from diana.stores.redis.connection.opening import CONNECT_SECONDS
        from diana.stores.redis.connection.topology import find_server

        with find_server(self._address, key) as connection:
            return connection.exchange(steps, Budget(CONNECT_SECONDS))

    def counter(self, rule: str, values: tuple[str, ...], rules: Path | None) -> Counter:
        from diana.stores.redis.protocol.wire import wire_text

        known = self._rule_of_file(rule, rules) if rules else self._published_rule(rule)
        key = key_of_values(known.actor, values)
        return Counter(known, key, wire_text(known.meter.id) + b"|" + wire_text(key))

    def override_of(self, counter: Counter) -> Override | None:
        """What stands in the store for this client."""
        from diana.stores.redis.background.overrides import (
            field_of,
            override_keys,
            override_of_text,
        )
        from diana.stores.redis.protocol.commands import command

        home = override_keys(self.namespace)[0]
        field = field_of(counter.rule.name, counter.key)
        text = self.say(home, command("HGET", home, field))
        return None if text is None else override_of_text(text.decode())

    def look(self, counter: Counter) -> list[int]:
        """Passed or not, what remains, and in µs: until it passes, until it is as good as new, how long it would wait."""
        from diana.stores.redis.connection.budget import Budget
        from diana.stores.redis.connection.opening import CONNECT_SECONDS
        from diana.stores.redis.protocol.commands import acquire
        from diana.stores.redis.protocol.script import wire_limit
        from diana.stores.redis.protocol.server_clock import ServerClock

        rule, override = counter.rule, self.override_of(counter)
        limit = rule.published or wire_limit(rule.meter)
        if override is not None:
            limit = wire_limit(meter_with(rule.meter, override))
        if limit is None:
            code = rule.meter.algorithm.code
            raise click.ClickException(f"{code} has no kernel in Lua; ask a node instead")
        request = ["look", 1, limit, 1]
        clock = ServerClock(lambda: None)
        steps = acquire(clock, [counter.wire_key], request, None, Budget(CONNECT_SECONDS))
        said = self.say(counter.wire_key, steps)[1]
        if not isinstance(said, list):
            raise click.ClickException(f"unexpected reply: {said!r}")
        return [int(number) for number in said[1:6]]

    def reset(self, counter: Counter) -> bool:
        """Whether there was something to forget. Every node hears of it: what it remembers of a denial is forgotten too."""
        from diana.stores.redis.background.overrides import override_keys, write_forgotten
        from diana.stores.redis.protocol.commands import call_script
        from diana.stores.redis.protocol.script import scripts

        steps = call_script(scripts()["reset"], [counter.wire_key], ("",))
        gone = self.say(counter.wire_key, steps)
        home = override_keys(self.namespace)[0]
        self.say(home, write_forgotten(self.namespace, counter.wire_key))
        return bool(gone)

    def override(self, counter: Counter, override: Override | None) -> bool:
        """Whether there was one before."""
        from diana.stores.redis.background.overrides import override_keys, write_override

        steps = write_override(self.namespace, counter.rule.name, counter.key, override)
        return bool(self.say(override_keys(self.namespace)[0], steps))

    def _published_rule(self, name: str) -> Known:
        found = {known.meter.id: known for known in self._published()}
        chosen = [known for known in found.values() if known.name == name]
        if len(chosen) == 1:
            return chosen[0]
        if chosen:
            raise click.ClickException(
                f"several rules are called {name!r}; give each a name of its own in the rules file"
            )
        names = sorted({known.name for known in found.values()})
        said = unknown_rule(name, names) if names else f"there is no rule {name!r}"
        raise click.ClickException(
            f"{said} (nodes publish global rules that were asked within the hour; name others with --rules FILE)"
        )

    def _published(self) -> Iterator[Known]:
        from diana.stores.redis.connection.budget import Budget
        from diana.stores.redis.connection.topology import every_server
        from diana.stores.redis.protocol.commands import command

        prefix = f"{self.namespace}:limit:".encode()
        with every_server(self._address) as servers:
            for server in servers:
                cursor = b"0"
                while True:
                    match = prefix + b"*"
                    scan = command("SCAN", cursor, "MATCH", match, "COUNT", 1_000)
                    cursor, keys = server.exchange(scan, Budget(5.0))
                    for key in keys:
                        text = server.exchange(command("GET", key), Budget(5.0))
                        known = self._known(key.removeprefix(prefix), text)
                        if known is not None:
                            yield known
                    if cursor == b"0":
                        break

    def _known(self, wire_id: bytes, limit: bytes | None) -> Known | None:
        """None for what is no rule's: a Limiter's, a plug-in's that is not installed here."""
        id = _unquoted(wire_id.decode("utf-8", "surrogatepass"), {"%7B": "{", "%7D": "}"})
        parts = id.removeprefix(f"{self.namespace}:").split("|")
        if limit is None or len(parts) < 5 or parts[3] not in algorithms():
            return None
        name, actor, _, code, unit, *options = (_unquoted(part, {"%7C": "|"}) for part in parts)
        given = {key: int(value) for key, _, value in (one.partition("=") for one in options)}
        try:
            # Its real number is in `limit`; this one only has the right unit, for an override to change.
            unit_us = _hold_us(limit) if unit == AT_ONCE else micros_from_spelling(unit)
            meter = meter_from_limit("", Limit(1, unit_us), algorithms()[code], given)
        except ConfigError:
            return None
        own = Meter(id, meter.limit, meter.algorithm, meter.params, given)
        return Known(name, actor, own, limit)

    def _rule_of_file(self, name: str, file: Path) -> Known:
        policy = load_rules(file)
        for rule in policy.rules:
            if rule.name == name:
                return Known(rule.name, rule.actor, rule.meter)
        raise click.ClickException(unknown_rule(name, [rule.name for rule in policy.rules]))


def key_of_values(actor: str, values: tuple[str, ...]) -> str:
    """The key of these values of an actor; of a combination, in the order in which it is shown."""
    spellings = actor.split(" + ")
    keys = []
    given = list(values)
    for spelling in spellings:
        word, _, name = spelling.partition(" ")
        url = url_from_spelling(
            f"/{{{name.removesuffix(' as int')}}}" if word == "segment" else "/"
        )
        spelled = actor_from_spelling(spelling, Surroundings(url, Proxies(), _nobody, _nobody))
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


@contextmanager
def opened_tool(url: str, namespace: str | None) -> Iterator[Tool]:
    """The store at URL; what goes wrong with it is said in a line."""
    try:
        from diana.stores.redis.protocol.failures import Failure
    except ModuleNotFoundError as missing:
        raise click.ClickException(
            f"{missing.name} is not installed; run pip install 'diana-limiter[redis]'"
        ) from None
    try:
        yield Tool(url, namespace)
    except (ConfigError, Failure) as error:
        raise click.ClickException(str(error)) from None


def counter_arguments(verb: Callable[..., Any]) -> Callable[..., Any]:
    """URL RULE VALUE…, and where to look for the rule."""
    for decorate in (
        click.option(
            "--rules",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            default=None,
            help="The rules file; else what nodes have published in the store.",
        ),
        click.option(
            "--namespace",
            default=None,
            help="Prefix of all keys; the rules file's `namespace`. [default: diana]",
        ),
        click.argument("values", nargs=-1, metavar="VALUE"),
        click.argument("rule"),
        click.argument("url"),
    ):
        verb = decorate(verb)
    return verb


def _unquoted(text: str, signs: dict[str, str]) -> str:
    for quoted, sign in signs.items():
        text = text.replace(quoted, sign)
    return text.replace("%25", "%")


def _hold_us(limit: bytes) -> int:
    """For how long a place is held: the second number of a limit of places."""
    numbers = json.loads(limit)[1]
    return int(numbers[1])


def _nobody(_: Request) -> str | None:
    return None
