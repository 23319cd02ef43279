"""`diana watch URL`: every change of the rules, as it comes."""

from __future__ import annotations

import logging
from datetime import datetime
from threading import Event

import click

from diana.cli.centre import URL_HELP, count_of, forgotten_scheme, say_difference
from diana.core.errors import ConfigError, SourceError
from diana.core.policy import Policy
from diana.sources.following.live import LiveRules
from diana.sources.following.problems import Problem

LOOK_SECONDS = 0.2


@click.command(epilog=f"URL: {URL_HELP}.")
@click.argument("url")
@click.option("--count", type=click.IntRange(1), help="End after so many changes.")
def watch(url: str, count: int | None) -> None:
    """Follow the rules at URL (or in a file) as a node would, and show what changes and what goes wrong."""
    # What is logged is said here anyway.
    logging.getLogger("diana").addHandler(logging.NullHandler())
    if hint := forgotten_scheme(url):
        raise click.ClickException(hint)
    try:
        live = LiveRules(url)
    except (ConfigError, SourceError) as error:
        raise click.ClickException(str(error)) from None
    told = Told(live, count)
    click.echo(f"{now()} {count_of(live.policy)}, version {live.policy.version}")
    live.follow(told.swap)
    try:
        while not told.enough.wait(LOOK_SECONDS):
            told.look()
    except KeyboardInterrupt:
        pass
    finally:
        live.close()


class Told:
    """Says what it is told."""

    def __init__(self, live: LiveRules, count: int | None) -> None:
        self.enough = Event()
        self._live = live
        self._policy = live.policy
        self._left = count
        self._problems: tuple[Problem, ...] = ()

    def swap(self, policy: Policy) -> None:
        if policy is self._policy:
            return
        click.echo(f"{now()} {count_of(policy)}, version {policy.version}")
        say_difference(self._policy, policy)
        self._policy = policy
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self.enough.set()

    def look(self) -> None:
        problems = self._live.problems
        if problems != self._problems:
            self._problems = problems
            for problem in problems:
                click.secho(f"{now()} {problem.message}", fg="red")
            if not problems:
                click.secho(f"{now()} all is well again", fg="green")


def now() -> str:
    return datetime.now().strftime("%H:%M:%S")
