"""`diana zone NAME`: what stands in a zone of shared memory; empty it, or remove it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from diana.cli.output import echo_json, format_option, say
from diana.cli.zone_counters import open_zone
from diana.core.errors import ConfigError, StoreError


@click.command()
@click.argument("name")
@click.option("--empty", is_flag=True, help="Forget every key, for all processes that use it.")
@click.option(
    "--remove",
    is_flag=True,
    help="Remove its file. Processes that use it go on with it until they are restarted; the next to start makes a new one.",
)
@format_option
def zone(name: str, empty: bool, remove: bool, form: str) -> None:
    """Show a zone of shared memory, empty it, or remove it.

    The zone shared://NAME of this user: how full it is, of what kind, and which limits use it.
    """
    if empty and remove:
        raise click.UsageError("write --empty or --remove")
    name = name.removeprefix("shared://").partition("?")[0]
    try:
        if remove:
            _remove(name, form)
        elif empty:
            _empty(name, form)
        else:
            _show(name, form)
    except (ConfigError, StoreError) as error:
        raise click.ClickException(str(error)) from None


def _remove(name: str, form: str) -> None:
    from diana.stores.zone.zone_file import remove_zone_file

    remove_zone_file(name)
    if form == "json":
        echo_json({"name": name, "removed": True})
    else:
        say(f"Zone {name} is removed.")


def _empty(name: str, form: str) -> None:
    store = open_zone(name)
    keys = store.counts()["keys"]
    store.clear()
    if form == "json":
        echo_json({"name": name, "forgotten": keys})
    else:
        say(f"Zone {name} is empty; {keys:,} key{'' if keys == 1 else 's'} forgotten.")


def _show(name: str, form: str) -> None:
    from diana.stores.zone.zone_size import spelling_from_size

    store = open_zone(name)
    header, counts = store.file.header, store.counts()
    if form == "json":
        about: dict[str, Any] = {
            "name": name,
            "path": str(store.file.path),
            "kind": header.kind,
            "version": header.version,
            "size": header.size,
            "created": header.created_us / 1_000_000,
            "node": store.node,
            **counts,
            "limits": [{"id": id, "used": used} for id, used in store.limits()],
        }
        echo_json(about)
        return
    created = datetime.fromtimestamp(header.created_us / 1_000_000, UTC)
    say(
        f"{store.file.path}: {spelling_from_size(header.size)}, made {created:%Y-%m-%d %H:%M:%S} UTC"
    )
    say(f"kind {header.kind}, layout {header.version}, node {store.node}")
    share = 100 * counts["used"] / max(1, counts["slots"])
    say(
        f"{counts['keys']:,} keys in {counts['used']:,} of {counts['slots']:,} slots ({share:.1f} %)"
    )
    say(f"{counts['evictions']:,} evicted while it was full")
    for id, used in sorted(store.limits(), key=lambda limit: -limit[1]):
        say(f"{used:>12,}  {id}")
