"""`diana publish-rules FILE`: keep the rules that nginx reads current."""

from __future__ import annotations

import os
from datetime import datetime

import click

from diana.cli.output import say
from diana.core.errors import ConfigError, SourceError
from diana.rules.watch.live_rules import LiveRules


@click.command(name="publish-rules")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--store", help="URL of the store, instead of the file's.")
@click.option("--once", is_flag=True, help="Publish what holds now, and end.")
def publish_rules(file: str, store: str | None, once: bool) -> None:
    """Publish the rules of FILE for nginx, and every change.

    They are for a configuration that `diana export nginx` wrote.
    They are followed as a node follows them, with rules_from. It runs until it is stopped; a store that is lost is tried again.
    """
    import redis

    from diana.nginx.rules_publisher import LOOK_SECONDS, RulesPublisher

    try:
        live = LiveRules(file)
        chosen = store or os.environ.get("DIANA_STORE") or live.policy.settings.store
        if chosen is None:
            raise ConfigError(
                "there is no store to publish in; write store: into the file, or --store URL"
            )
        publisher = RulesPublisher(live.policy, chosen)
    except (ConfigError, SourceError) as error:
        raise click.ClickException(str(error)) from None
    if not once:
        live.follow(publisher.swap)
    lost = ""
    try:
        while True:
            publisher.changed.clear()
            try:
                version = publisher.publish()
                if version is not None or once:
                    _say(
                        f"published version {live.policy.version}"
                        if version
                        else "published already"
                    )
                lost = ""
            except redis.RedisError as error:
                if once:
                    raise click.ClickException(f"nothing was published: {error}") from None
                if str(error) != lost:
                    _say(f"not published: {error}; trying again")
                lost = str(error)
            if once:
                return
            publisher.changed.wait(LOOK_SECONDS)
    except KeyboardInterrupt:
        pass
    finally:
        live.close()
        publisher.close()


def _say(text: str) -> None:
    say(f"{datetime.now().astimezone():%H:%M:%S} {text}")
