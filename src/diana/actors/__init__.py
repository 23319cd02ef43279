"""From a rule's `actor` to a function that returns a request's key. One file for each actor; entry points: `diana.actors`.

account   `account` and `device`: what the setting `identity` finds
everyone  `all`: all clients together
ip        `ip`: the client's address
header    `header NAME`
cookie    `cookie NAME`
query     `query NAME`, `query NAME as int`
host      `host`: the host that the client asked for
path      `path`: the canonical path
segment   `segment NAME`, `segment NAME as int`: what a url captures as {NAME}

`query sku as int`: an application that reads an integer takes `7`, `07`, `+7` and `7.0` for the same value, so the rule does too. A
spelling that the application accepts and the rule does not is a way around the rule. So every spelling counts as a number that either
`int()` or pydantic (FastAPI) reads as an integer, and also a few spellings that both refuse: to count those costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple, cast

from diana.core.actor import (
    CODE,
    KINDS,
    Actor,
    Identity,
    RuleContext,
    key_from_parts,
    key_from_secret,
    key_from_value,
)
from diana.core.errors import ConfigError, shown
from diana.core.request import Request
from diana.runtime.entry_points import entries, plugin

KeyOf = Callable[[Request], str | None]

_UNSPACED = re.compile(r"\s*([A-Za-z_]+)\s*[:=(]\s*(.*?)\s*\)?\s*")


class Spelled(NamedTuple):
    """`header X-Tenant` in its place: the canonical spelling, what it finds in a request, and how that becomes a key."""

    spelling: str
    identity: Identity
    key_from: Callable[[str], str]
    actor: Actor


def actor_from_spelling(text: str, surroundings: RuleContext) -> Spelled:
    if " + " in text:
        parts = ", ".join(part.strip() for part in text.split(" + "))
        raise ConfigError(
            f"an actor must be one of a request's values (got {shown(text)}); write a combination as a list, [{parts}]"
        )
    word, _, argument = text.strip().partition(" ")
    word, actor = _named(word.lower(), text)
    argument = argument.strip()
    if actor.argument is None and argument:
        raise ConfigError(f"{argument!r} behind {word!r}; write just {word}")
    if actor.argument is not None and not argument:
        raise ConfigError(f"{word!r} of what? write {word} {actor.argument}")
    if actor.any_case:
        argument = argument.lower()
    spelling = f"{word} {argument}" if argument else word
    key_from = key_from_secret if actor.secret else key_from_value
    return Spelled(spelling, actor.identity(argument, surroundings), key_from, actor)


def key_from_written(spelled: Spelled, value: str) -> str | None:
    """The key of a value as an operator writes it; None if the actor can have no such value."""
    canonical = spelled.actor.canonical
    # Blanks around what clients send do not count, and nothing at all is no identity.
    value = value.strip()
    found = value if canonical is None else canonical(value)
    return spelled.key_from(found) if found else None


def actor_named(text: str) -> tuple[str, Actor]:
    """The canonical first word of a spelling, and the actor behind it."""
    return _named(text.strip().partition(" ")[0].lower(), text)


def identity_actor_named(text: str) -> tuple[str, Actor]:
    """`actor_named`, for a place in `identity`: what a message lists is what may be written there."""
    return _named(text.strip().partition(" ")[0].lower(), text, _known_in_identity)


def _known() -> list[str]:
    return sorted(entries("actors"))


def _known_in_identity() -> list[str]:
    actors = {name: cast("Actor", plugin("actors", name)) for name in entries("actors")}
    found = [
        name
        for name, actor in actors.items()
        if name not in KINDS and actor.constant is None and not actor.needs_url
    ]
    return sorted([*found, CODE])


def key_of(actors: list[Spelled]) -> KeyOf:
    """A request's key by these actors together; None if one of them finds nothing."""
    if len(actors) == 1:
        _, identity, key_from, actor = actors[0]
        if actor.constant is not None:
            constant = key_from(actor.constant)
            return lambda _: constant

        def key_of_one(request: Request) -> str | None:
            value = identity(request)
            return None if value is None else key_from(value)

        return key_of_one

    def key_of_several(request: Request) -> str | None:
        keys = []
        for _, identity, key_from, _ in actors:
            value = identity(request)
            if value is None:
                return None
            keys.append(key_from(value))
        return key_from_parts(keys)

    return key_of_several


def _named(word: str, text: str, listed: Callable[[], list[str]] = _known) -> tuple[str, Actor]:
    """By its own word, or by another one for it."""
    known = entries("actors")
    if word in known:
        return word, cast("Actor", plugin("actors", word))
    for name in known:
        actor = cast("Actor", plugin("actors", name))
        if word in actor.also_written:
            return name, actor
    kind, argument = _unspaced(text)
    if kind in known:
        raise ConfigError(
            f"an actor must be written with a space (got {shown(text)}); write {_spaced(kind, argument)}"
        )
    words = listed()
    near = get_close_matches(word, words, 1, 0.7)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(f"{shown(text)} is no actor; {hint}write one of {', '.join(words)}")


def _unspaced(text: str) -> tuple[str, str]:
    """`header:X-Key`, `header=X-Key`, `header(X-Key)`: the word and what stands behind it."""
    found = _UNSPACED.fullmatch(text[:200])
    return ("", "") if found is None else (found[1].lower(), found[2])


def _spaced(kind: str, argument: str) -> str:
    actor = cast("Actor", plugin("actors", kind))
    return kind if actor.argument is None else f"{kind} {argument or actor.argument}"


Conversion = Callable[[str | None], str | None]

# `\d` includes the digits of other scripts, as in `int()`. pydantic removes leading zeros before it reads the sign: `0-7` is -7 to it.
_INTEGER = re.compile(r"(?:\+?0[0_]*(?=-))?([+-]?)([\d_]*\d)(?:\.0+)?")


def conversion_from_argument(argument: str) -> tuple[str, Conversion]:
    """The name, and what to make of its value."""
    name, separator, kind = argument.rpartition(" as ")
    if separator and kind.strip().lower() == "int":
        return name.strip(), _as_int
    return argument, _as_it_is


def _as_it_is(value: str | None) -> str | None:
    return value


def _as_int(value: str | None) -> str | None:
    """The integer's shortest spelling; None if the value is not an integer, which is as good as missing.

    Text operations only: `int()` refuses 4,301 digits, even if all but one are leading zeros, and pydantic does not.
    """
    found = None if value is None else _INTEGER.fullmatch(value.strip())
    if found is None:
        return None
    sign, digits = found.groups()
    digits = digits.replace("_", "")
    if not digits.isascii():
        digits = "".join(str(int(digit)) for digit in digits)
    digits = digits.lstrip("0")
    if not digits:
        return "0"
    return f"-{digits}" if sign == "-" else digits
