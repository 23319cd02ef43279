"""`diana nodes URL`: who counts in a store."""

from __future__ import annotations

import click

from diana.cli.output import echo_json, format_option, say
from diana.core.errors import ConfigError


@click.command()
@click.argument("url", envvar="DIANA_STORE")
@click.option(
    "--namespace",
    default=None,
    help="Prefix of all keys; the rules file's `namespace`. [default: diana]",
)
@format_option
def nodes(url: str, namespace: str | None, form: str) -> None:
    """Show the nodes that count in the store at URL.

    URL is such as redis://localhost:6379. A node is a process, or all processes of a machine that share a zone; its heartbeat comes once
    a second, and after five seconds without one it is gone.
    """
    try:
        from diana.stores.redis.background.membership import nodes_of_store
        from diana.stores.redis.protocol.failures import Failure
    except ModuleNotFoundError as missing:
        raise click.ClickException(
            f"{missing.name} is not installed; run pip install 'diana-limiter[redis]'"
        ) from None
    try:
        found = nodes_of_store(url, namespace)
    except (ConfigError, Failure) as error:
        raise click.ClickException(str(error)) from None
    found = sorted(found, key=lambda node: (node.host, node.pid))
    if form == "json":
        echo_json([node._asdict() for node in found])
        return
    for node in found:
        heard = f"heard of {node.silent_ms / 1_000:.1f} s ago"
        weight = "" if node.weight == 1 else f"  weight {node.weight}"
        leases = (
            f"  holds {node.held} of {node.leased} leased, used {node.used}" if node.leased else ""
        )
        say(f"{node.id}  {node.host}  pid {node.pid}{weight}  {heard}{leases}")
    say(f"{len(found)} node{'' if len(found) == 1 else 's'}")
