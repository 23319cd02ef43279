"""`diana pull URL`: what rules are there?"""

from __future__ import annotations

import click

from diana.cli.centre import URL_HELP, opened


@click.command(epilog=f"URL: {URL_HELP}.")
@click.argument("url")
def pull(url: str) -> None:
    """Print the rules document at URL, as it is."""
    with opened(url) as source:
        edition = source.load()
    click.echo(edition.text, nl=False)
