"""`diana rollback URL`: the rules that were there before."""

from __future__ import annotations

import click

from diana.cli.output import say
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
from diana.core.plain_text import plain
from diana.rules.loading import rules_from_remote


@click.command(epilog=f"URL: {URL_HELP}.")
@click.argument("url")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def rollback(url: str, yes: bool) -> None:
    """Publish again what the last push at URL replaced.

    A second rollback undoes the first.
    """
    with opened(target(url)) as source:
        store = editable(source, url)
        place = place_of(source, url)
        seen = there_now(source)
        refuse_own_file(source, seen, url)
        previous = store.previous()
        new = rules_from_remote(previous.text, f"the previous rules at {place}")
        say_difference(policy_there(seen, url), new)
        if not yes:
            click.confirm(plain(f"publish {count_of(new)} again at {place}?"), abort=True)
        edition = store.publish(previous.text, seen)
    say(f"rolled back to {count_of(new)} at {place}, {version_of(new, edition)}")
