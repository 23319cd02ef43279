"""Which store a command asks: its first argument if that is a URL, else the rules file's or DIANA_STORE."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

import click

from diana.core.matched_rules import HERE
from diana.core.policy import Policy
from diana.core.rule import Rule

ENVIRONMENT = "DIANA_STORE"
WRITE = (
    f"write the store's URL as the first argument, such as redis://localhost:6379, or set {ENVIRONMENT} "
    "in the environment"
)
_SERVER = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}(?:/.*)?")


class Words(NamedTuple):
    """The arguments of a command about one client: `[URL] RULE [VALUE]...`."""

    url: str | None
    rule: str
    values: tuple[str, ...]


def words_from_arguments(arguments: tuple[str, ...]) -> Words:
    """A first argument with `://` is the URL."""
    url = arguments[0] if arguments and "://" in arguments[0] else None
    rest = arguments if url is None else arguments[1:]
    if not rest:
        raise click.UsageError("RULE is missing; write the name of a rule")
    if url is None and _SERVER.fullmatch(rest[0]):
        raise click.UsageError(
            f"{rest[0]!r} is no URL; write its scheme, such as redis://{rest[0]}"
        )
    return Words(url, rest[0], rest[1:])


def store_url(given: str | None) -> str:
    """UsageError names both ways to say which store it is."""
    if given and "://" not in given:
        raise click.UsageError(f"the URL of the store has no scheme; {WRITE}")
    url = given or os.environ.get(ENVIRONMENT)
    if not url:
        raise click.UsageError(f"which store? {WRITE}")
    return url


def store_of_rule(given: str | None, policy: Policy, rule: Rule) -> str:
    """Where a node that uses this rules file counts by this rule."""
    settings = policy.settings
    if given is not None:
        return given
    local = settings.local_store
    shared = os.environ.get(ENVIRONMENT) or settings.store
    if rule.scope not in HERE and shared:
        return shared
    if local.startswith("shared://"):
        return local
    if rule.scope in HERE:
        raise click.ClickException(
            f"rule {rule.name!r} has scope {rule.scope}, so it counts in local_store, {local}: in the memory of each process, "
            "which no command can read; write local_store: shared://NAME, or scope: global and a store"
        )
    raise click.UsageError(
        f"which store? the rules file names none; write store: into it, {WRITE[len('write ') :]}"
    )
