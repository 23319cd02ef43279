"""`diana watch URL`: every change of the rules, as it comes."""

from __future__ import annotations

import logging
import os
from datetime import datetime
from threading import Event
from typing import Protocol

import click

from diana.cli.output import echo_json_line, format_option, say, styled
from diana.cli.rules_targets import (
    URL_HELP,
    count_of,
    forgotten_scheme,
    json_of_difference,
    say_difference,
)
from diana.cli.store_argument import ENVIRONMENT
from diana.core.errors import ConfigError, SourceError
from diana.core.policy import Policy
from diana.rules.watch.live_rules import LiveRules
from diana.rules.watch.rules_health import Problem

LOOK_SECONDS = 0.2


@click.command(epilog=f"URL: {URL_HELP}.")
@click.argument("url", required=False)
@click.option("--count", type=click.IntRange(1), help="End after so many changes.")
@format_option
def watch(url: str | None, count: int | None, form: str) -> None:
    """Follow the rules at URL as a node would, and show changes.

    And what goes wrong. URL may be a file, too; without it, the rules in the store that DIANA_STORE names are followed. As JSON, each
    event is an object on a line of its own.
    """
    # What is logged is reported here anyway.
    logging.getLogger("diana").addHandler(logging.NullHandler())
    url = url or _rules_of_store()
    if hint := forgotten_scheme(url):
        raise click.ClickException(hint)
    try:
        live = LiveRules(url)
    except (ConfigError, SourceError) as error:
        raise click.ClickException(str(error)) from None
    report: Report = JsonReport() if form == "json" else TextReport()
    policy = live.policy
    report.rules(None, policy)
    follower = Follower(live, policy, count, report)
    live.follow(follower.swap)
    try:
        while not follower.enough.wait(LOOK_SECONDS):
            follower.look()
    except KeyboardInterrupt:
        pass
    finally:
        live.close()


def _rules_of_store() -> str:
    """The rules that stand in the store itself, where `diana push URL` puts them."""
    url = os.environ.get(ENVIRONMENT)
    if not url:
        raise click.UsageError(
            "which rules? write a file or a URL, such as redis://localhost:6379, as the argument, "
            f"or set {ENVIRONMENT} in the environment"
        )
    return url


class Report(Protocol):
    def rules(self, old: Policy | None, new: Policy) -> None: ...

    def problems(self, problems: tuple[Problem, ...]) -> None: ...


class TextReport:
    def rules(self, old: Policy | None, new: Policy) -> None:
        say(f"{_now():%H:%M:%S} {count_of(new)}, version {new.version}")
        if old is not None:
            say_difference(old, new)

    def problems(self, problems: tuple[Problem, ...]) -> None:
        for problem in problems:
            for line in f"{_now():%H:%M:%S} {problem.message}".split("\n"):
                say(styled(line, "red"))
        if not problems:
            say(styled(f"{_now():%H:%M:%S} all is well again", "green"))


class JsonReport:
    def rules(self, old: Policy | None, new: Policy) -> None:
        changes = [] if old is None else json_of_difference(old, new)
        self._echo("rules", rules=len(new.rules), version=new.version, changes=changes)

    def problems(self, problems: tuple[Problem, ...]) -> None:
        self._echo("problems", problems=[problem._asdict() for problem in problems])

    def _echo(self, event: str, **facts: object) -> None:
        echo_json_line({"time": _now().isoformat(timespec="seconds"), "event": event, **facts})


class Follower:
    """Reports every change, and every problem once."""

    def __init__(self, live: LiveRules, policy: Policy, count: int | None, report: Report) -> None:
        """`policy`: the one that was told already."""
        self.enough = Event()
        self._live = live
        self._policy = policy
        self._left = count
        self._report = report
        self._problems: tuple[Problem, ...] = ()

    def swap(self, policy: Policy) -> None:
        if policy is self._policy:
            return
        self._report.rules(self._policy, policy)
        self._policy = policy
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self.enough.set()

    def look(self) -> None:
        problems = self._live.problems
        if problems != self._problems:
            self._problems = problems
            self._report.problems(problems)


def _now() -> datetime:
    return datetime.now().astimezone()
