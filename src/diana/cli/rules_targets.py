"""What the verbs that talk with a config centre share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import click

from diana.cli.output import say, styled
from diana.core.contracts import Revision, Source, WritableSource
from diana.core.errors import ConfigError, SourceError
from diana.core.policy import Policy
from diana.rules import is_url, open_source
from diana.rules.backends.file import FileSource
from diana.rules.backends.server_list import shown_url
from diana.rules.document.difference import RuleChange, ShedChange, difference, shed_difference
from diana.rules.loading import load_rules, rules_from_remote, settings_in

SCHEMES = {6379: "redis", 26379: "redis+sentinel", 2379: "etcd", 2181: "zookeeper", 443: "https"}
"""What usually listens there."""
_SERVER = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})(?:/.*)?")

URL_HELP = "file, http(s), etcd, redis, zookeeper, or an installed plug-in's"
SIGNS = {"+": "added", "-": "removed", "~": "changed"}


@contextmanager
def opened(where: str) -> Iterator[Source]:
    """A source, closed afterwards; whatever goes wrong is said and ends the command."""
    if hint := forgotten_scheme(where):
        raise click.ClickException(hint)
    try:
        source = open_source(where)
        try:
            yield source
        finally:
            source.close()
    except (ConfigError, SourceError) as error:
        raise click.ClickException(str(error)) from None


def place_of(source: Source, where: str) -> str:
    """What a source calls itself: a path, or a server and its key. Never with a password."""
    return str(getattr(source, "place", shown_url(where)))


def target(where: str) -> str:
    """Where something is to be written: a URL, or a file that is there."""
    if not is_url(where) and not Path(where).is_file():
        raise click.ClickException(forgotten_scheme(where) or _new_file(where))
    return where


def forgotten_scheme(where: str) -> str | None:
    """What to write, if this looks like a server; None if it is a path."""
    if is_url(where) or Path(where).exists():
        return None
    if "@" in where:  # part of it may be a password
        return "this is no file, and a URL begins with a scheme; write the whole URL, such as redis://host:6379"
    server = _SERVER.fullmatch(where)
    if server is None:
        return None
    scheme = SCHEMES.get(int(server[1]), "redis")
    return f"{where} is no file, and a URL begins with a scheme; write {scheme}://{where}"


def _new_file(where: str) -> str:
    return (
        f"{where} is no file that is there; write {Path(where).absolute().as_uri()} for a new file"
    )


def editable(source: Source, where: str) -> WritableSource:
    if not hasattr(source, "publish"):
        raise click.ClickException(f"{place_of(source, where)} can only be read")
    return cast("WritableSource", source)


def refuse_own_file(source: Source, seen: Revision | None, where: str) -> None:
    """A node's own file holds settings, which a published document would wipe out."""
    settings = settings_in(seen.text) if seen and isinstance(source, FileSource) else []
    if settings:
        raise click.ClickException(
            f"{shown_url(where)} holds settings ({', '.join(settings)}), so it is a node's own file, "
            "and they would be lost; edit it, or publish at another place and name that in rules_from"
        )


def version_of(policy: Policy, edition: Revision) -> str:
    """As verdicts show it; and what the centre calls it, if that is something else."""
    if edition.version == policy.version:
        return f"version {policy.version}"
    return f"version {policy.version} ({edition.version} there)"


def there_now(source: Source) -> Revision | None:
    """What is there; None if nothing is, or no server answers: then why is shown, and publishing finds out which."""
    try:
        return source.load()
    except SourceError as error:
        say(styled(f"nothing to compare with: {error}", "yellow"))
        return None


def policy_there(edition: Revision | None, where: str) -> Policy | None:
    """The rules that are there; None if they are no rules."""
    if edition is None:
        return None
    try:
        return rules_from_remote(edition.text, shown_url(where))
    except ConfigError:
        return None


def policy_at(where: str) -> Policy:
    """Rules by path, where they may have settings, or by URL."""
    if not is_url(where):
        if hint := forgotten_scheme(where):
            raise ConfigError(hint)
        return load_rules(Path(where))
    with opened(where) as source:
        return rules_from_remote(source.load().text, shown_url(where))


def count_of(policy: Policy) -> str:
    count = len(policy.rules)
    return f"{count} rule{'' if count == 1 else 's'}"


def say_difference(old: Policy | None, new: Policy) -> bool:
    """Whether there is one."""
    changes: list[RuleChange | ShedChange] = [*difference(old, new), *shed_difference(old, new)]
    for change in changes:
        say(styled(str(change), {"+": "green", "-": "red"}.get(change.sign, "yellow")))
    if not changes:
        say("no rule changes")
    return bool(changes)


def json_of_difference(old: Policy | None, new: Policy) -> list[dict[str, Any]]:
    return [
        {
            "change": SIGNS[change.sign],
            "name": change.rule.name,
            "rule": str(change.rule),
            "fields": {field: {"before": was, "after": now} for field, was, now in change.fields},
        }
        for change in difference(old, new)
    ] + [
        {
            "change": SIGNS[change.sign],
            "name": f"shed {change.factor}",
            "fields": {"shed": {"before": change.before, "after": change.after}},
        }
        for change in shed_difference(old, new)
    ]
