"""All verbs under one name."""

from __future__ import annotations

import click

from diana.cli.check import check
from diana.cli.completion import completion
from diana.cli.demo import demo
from diana.cli.diff import diff
from diana.cli.explain import explain
from diana.cli.export import export
from diana.cli.gateway import gateway
from diana.cli.import_ import import_
from diana.cli.nodes import nodes
from diana.cli.output import colour_by_environment
from diana.cli.override import override
from diana.cli.peek import peek, reset, unblock
from diana.cli.publish_rules import publish_rules
from diana.cli.pull import pull
from diana.cli.push import push
from diana.cli.rollback import rollback
from diana.cli.shed import shed
from diana.cli.watch import watch
from diana.cli.zone import zone
from diana.stores.native import description


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    package_name="diana-limiter",
    prog_name="diana",
    message=f"%(prog)s, version %(version)s, {description()}",
)
@click.pass_context
def diana(context: click.Context) -> None:
    """A rate limiter that is exact to the microsecond and never in the way."""
    context.color = colour_by_environment()


VERBS = (
    check,
    completion,
    demo,
    diff,
    explain,
    export,
    gateway,
    import_,
    nodes,
    override,
    peek,
    publish_rules,
    pull,
    push,
    reset,
    rollback,
    shed,
    unblock,
    watch,
    zone,
)

for verb in VERBS:
    diana.add_command(verb)
