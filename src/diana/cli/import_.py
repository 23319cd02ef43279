"""`diana import nginx FILE`: limits of nginx as a rules file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from diana.cli.output import say, say_document
from diana.core.errors import ConfigError


@click.group(name="import")
def import_() -> None:
    """Turn the limits of another program into a rules file."""


@import_.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="A file instead of standard output; it must not exist.",
)
@click.option(
    "--strict", is_flag=True, help="Exit with 1 if anything was not translated to the letter."
)
def nginx(file: str, output: str | None, strict: bool) -> None:
    """Turn limit_req and limit_conn of a configuration of nginx into rules.

    What could not be translated, or means something else here, is told on standard error.
    """
    from diana.nginx.importing import import_nginx

    try:
        imported = import_nginx(file)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    for note in imported.notes:
        say(str(note), err=True)
    if not imported.document["limits"]:
        raise click.ClickException(
            f"{file} has no limit_req or limit_conn that could be translated"
        )
    _write(imported.text(), output)
    sys.exit(1 if strict and imported.notes else 0)


def _write(text: str, output: str | None) -> None:
    if output is None:
        say_document(text.encode())
        return
    try:
        with Path(output).open("x", encoding="utf-8") as target:
            target.write(text)
    except OSError as error:
        raise click.ClickException(f"cannot write {output}: {error.strerror}") from None
