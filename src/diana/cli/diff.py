"""`diana diff A B`: what would change?"""

from __future__ import annotations

import sys

import click

from diana.cli.centre import URL_HELP, policy_at, say_difference
from diana.core.errors import ConfigError


@click.command(epilog=f"URL: {URL_HELP}.")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
def diff(a: str, b: str) -> None:
    """Show in words how the rules of B differ from those of A; each is a file or a URL.

    Exits with 0 if no rule differs, 1 if one does.
    """
    try:
        old, new = policy_at(a), policy_at(b)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    sys.exit(1 if say_difference(old, new) else 0)
