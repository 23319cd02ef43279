"""`diana push FILE URL`: other rules for the whole fleet."""

from __future__ import annotations

from pathlib import Path

import click

from diana.cli.output import say, styled
from diana.cli.rules_targets import (
    URL_HELP,
    count_of,
    editable,
    opened,
    place_of,
    policy_there,
    refuse_own_file,
    say_difference,
    target,
    there_now,
    version_of,
)
from diana.core.errors import ConfigError
from diana.core.plain_text import plain
from diana.rules.loading import rules_from_remote


@click.command(epilog=f"URL: {URL_HELP}.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("url")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def push(file: Path, url: str, yes: bool) -> None:
    """Check FILE, show what it changes, and publish it at URL.

    It replaces only what was shown: if that has changed meanwhile, nothing is written. `diana rollback` brings back what it replaced.
    A remote document holds limits and defaults; settings stay in each node's own file.
    """
    text = file.read_bytes()
    try:
        new = rules_from_remote(text, str(file))
    except ConfigError as error:
        raise click.ClickException(f"nothing was published:\n{error}") from None
    with opened(target(url)) as source:
        store = editable(source, url)
        place = place_of(source, url)
        seen = there_now(source)
        refuse_own_file(source, seen, url)
        if seen is not None and seen.text == text:
            say(f"{place} holds these rules already")
            return
        old = policy_there(seen, url)
        if seen is not None and old is None:
            say(styled("what is there now is no valid rules document", "yellow"))
        say_difference(old, new)
        if not yes:
            click.confirm(plain(f"publish {count_of(new)} at {place}?"), abort=True)
        edition = store.publish(text, seen)
    say(f"published {count_of(new)} at {place}, {version_of(new, edition)}")
