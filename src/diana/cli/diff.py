"""`diana diff A B`: what would change?"""

from __future__ import annotations

import sys

import click

from diana.cli.output import echo_json, format_option
from diana.cli.rules_targets import URL_HELP, json_of_difference, policy_at, say_difference
from diana.core.errors import ConfigError


@click.command(epilog=f"URL: {URL_HELP}.")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@format_option
def diff(a: str, b: str, form: str) -> None:
    """Show how the rules of B differ from those of A.

    Each is a file or a URL. Exits with 0 if no rule differs, 1 if one does.
    """
    try:
        old, new = policy_at(a), policy_at(b)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    if form == "json":
        changes = json_of_difference(old, new)
        echo_json(changes)
        sys.exit(1 if changes else 0)
    sys.exit(1 if say_difference(old, new) else 0)
