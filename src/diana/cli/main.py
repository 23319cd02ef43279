"""All verbs under one name."""

from __future__ import annotations

import click

from diana.cli.check import check
from diana.cli.completion import completion
from diana.cli.demo import demo
from diana.cli.explain import explain
from diana.cli.gateway import gateway
from diana.cli.nodes import nodes


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="diana-limiter", prog_name="diana")
def diana() -> None:
    """A rate limiter that is exact to the microsecond and never in the way."""


for verb in (check, completion, demo, explain, gateway, nodes):
    diana.add_command(verb)
