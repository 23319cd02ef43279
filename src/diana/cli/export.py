"""`diana export nginx FILE -o DIR`: the same rules in nginx, on the same counters."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import click

from diana.cli.output import say_text
from diana.core.errors import ConfigError, SourceError
from diana.rules.watch.live_rules import LiveRules


@click.group()
def export() -> None:
    """Write rules down for another program."""


@export.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "-o",
    "--output",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="A folder to write to; what diana has written there before is replaced.",
)
@click.option("--store", help="URL of the store, instead of the file's.")
@click.option(
    "--memory",
    default="32m",
    show_default=True,
    callback=lambda _, __, size: _checked_memory(size),
    help="For counters of scope local, in nginx: a size such as 32m.",
)
def nginx(file: str, folder: Path, store: str | None, memory: str) -> None:
    """Write Lua and a configuration for nginx, with which it limits by the rules of FILE.

    nginx asks the same scripts on the same counters of the store as every node. What it could not obey to the letter is refused.
    """
    from diana.nginx.exporter import export_nginx

    logging.getLogger("diana").addHandler(logging.NullHandler())
    try:
        live = LiveRules(file)
        live.close()
        policy = live.policy
        chosen = store or os.environ.get("DIANA_STORE") or policy.settings.store
        export_nginx(policy, chosen, folder, memory)
    except (ConfigError, SourceError) as error:
        raise click.ClickException(f"nothing was written:\n{error}") from None
    except OSError as error:
        raise click.ClickException(f"cannot write {folder}: {error.strerror}") from None
    where = folder.absolute()
    say_text(
        f"written to {where}; in http {{}} of nginx.conf write\n\n    include {where}/diana.conf;\n\n"
        f"and where requests are to be limited\n\n    include {where}/limit.conf;"
    )


def _checked_memory(size: str) -> str:
    from diana.nginx.exporter import checked_memory

    try:
        return checked_memory(size)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
