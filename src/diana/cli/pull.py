"""`diana pull URL`: what rules are there?"""

from __future__ import annotations

import click

from diana.cli.output import say_document
from diana.cli.rules_targets import URL_HELP, opened


@click.command(epilog=f"URL: {URL_HELP}.")
@click.argument("url")
def pull(url: str) -> None:
    """Print the rules document at URL, byte by byte as it is.

    On a terminal, control characters are escaped.
    """
    with opened(url) as source:
        edition = source.load()
    say_document(edition.text)
