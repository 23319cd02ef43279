"""All verbs under one name."""

from __future__ import annotations

from typing import Any

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
from diana.cli.output import color_by_environment
from diana.cli.override import override
from diana.cli.peek import peek, reset, unblock
from diana.cli.publish_rules import publish_rules
from diana.cli.pull import pull
from diana.cli.push import push
from diana.cli.rollback import rollback
from diana.cli.shed import shed
from diana.cli.watch import watch
from diana.cli.zone import zone
from diana.core.plain_text import plain
from diana.stores.c_kernels import description

EXTRAS = {
    "aiohttp": "gateway",
    "hiredis": "redis",
    "httptools": "gateway",
    "kazoo": "zookeeper",
    "prometheus_client": "prometheus",
    "psutil": "shed",
    "redis": "redis",
    "uvicorn": "gateway",
    "uvloop": "gateway",
    "websockets": "gateway",
}
"""Packages that a verb may need, and the extra that brings each."""


class Verbs(click.Group):
    """What goes wrong in a verb is a line, not a traceback; and a line that quotes a server is escaped."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as missing:
            package = (missing.name or "").partition(".")[0]
            if package not in EXTRAS:
                raise
            raise click.ClickException(
                f"diana {ctx.invoked_subcommand} needs the package {package}, which is not installed; "
                f"run pip install 'diana-limiter[{EXTRAS[package]}]'"
            ) from None
        except click.ClickException as error:
            said = error.format_message()
            escaped = plain(said, keep="\n")
            if escaped == said:
                raise
            if isinstance(error, click.UsageError):
                raise click.UsageError(escaped, error.ctx) from None
            raise click.ClickException(escaped) from None


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    package_name="diana-limiter",
    prog_name="diana",
    message=f"%(prog)s, version %(version)s, {description()}",
)
@click.pass_context
def diana(context: click.Context) -> None:
    """A rate limiter that is exact to the microsecond and never in the way."""
    context.color = color_by_environment()


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
