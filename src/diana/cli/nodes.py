"""`diana nodes [URL]`: which nodes count in a store."""

from __future__ import annotations

import click

from diana.cli.output import echo_json, format_option, say
from diana.cli.store_argument import store_url
from diana.core.errors import ConfigError
from diana.redis_client.redis_url import NAMESPACE, address_from_url
from diana.redis_client.reply_errors import Failure
from diana.rules.backends.server_list import shown_url


@click.command()
@click.argument("url", required=False)
@click.option(
    "--namespace",
    default=None,
    help="Prefix of all keys; the rules file's `namespace`. [default: the URL's, else diana]",
)
@format_option
def nodes(url: str | None, namespace: str | None, form: str) -> None:
    """Show the nodes that count in the store at URL.

    URL is such as redis://localhost:6379; without it, DIANA_STORE says. A node is a process, or all processes of a machine that share a
    zone; its heartbeat comes once a second, and after five seconds without one it is gone.
    """
    from diana.stores.redis.maintenance.heartbeat import nodes_of_store

    store = store_url(url)
    try:
        namespace = namespace or address_from_url(store).namespace or NAMESPACE
        found = nodes_of_store(store, namespace)
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
    count = f"{len(found)} node{'' if len(found) == 1 else 's'}"
    say(f"{count} in namespace {namespace!r} of {shown_url(store)}")
