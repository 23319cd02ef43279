"""`diana peek`, `reset` and `unblock`: one client's counter, for the support desk."""

from __future__ import annotations

from pathlib import Path

import click

from diana.cli.counters import Counter, Tool, counter_arguments, opened_tool
from diana.cli.output import echo_json, format_option
from diana.core.decision import NEVER, UNKNOWN
from diana.core.limit import Places


@click.command()
@counter_arguments
@format_option
def peek(
    url: str,
    rule: str,
    values: tuple[str, ...],
    namespace: str | None,
    rules: Path | None,
    form: str,
) -> None:
    """Show where a client stands under a rule.

    URL is the store's, such as redis://localhost:6379; RULE the rule's name; VALUE what it counts by: an account, an address. Nothing
    is charged.
    """
    with opened_tool(url, namespace) as tool:
        counter = tool.counter(rule, values, rules)
        passes, remaining, retry_us, reset_us, _ = tool.look(counter)
        override = tool.override_of(counter)
    if form == "json":
        echo_json(
            {
                "rule": counter.rule.name,
                "actor": counter.rule.actor,
                "key": counter.key,
                "allowed": bool(passes),
                "remaining": remaining,
                "retry_after": None if retry_us < 0 else retry_us / 1_000_000,
                "reset_after": reset_us / 1_000_000,
                "override": None if override is None else override._asdict(),
            }
        )
        return
    click.echo(f"rule    {counter.rule.name}, by {counter.rule.actor}")
    click.echo(f"key     {counter.key!r}")
    if override is not None:
        unit = "at once" if isinstance(counter.rule.meter.limit, Places) else "per unit"
        click.echo(f"number  {override.rpu} {unit}, an override")
    if passes:
        click.echo(f"says    {click.style('✓', fg='green')} {remaining} left")
    elif retry_us == UNKNOWN:
        click.echo(f"says    {click.style('✗ denied', fg='red')}, all places are taken")
    else:
        click.echo(f"says    {click.style('✗ denied', fg='red')}, retry after {_seconds(retry_us)}")
    click.echo(f"new in  {_seconds(reset_us)}")


@click.command()
@counter_arguments
def reset(
    url: str, rule: str, values: tuple[str, ...], namespace: str | None, rules: Path | None
) -> None:
    """Forget what was counted of a client under a rule.

    Arguments as for `diana peek`. All nodes follow within two seconds.
    """
    with opened_tool(url, namespace) as tool:
        counter = tool.counter(rule, values, rules)
        _say_reset(counter, tool.reset(counter))


@click.command()
@counter_arguments
def unblock(
    url: str, rule: str, values: tuple[str, ...], namespace: str | None, rules: Path | None
) -> None:
    """Let a client pass again that a rule denies now.

    Arguments as for `diana peek`. It resets the counter if the client is denied, and changes nothing if not. All nodes follow within
    two seconds.
    """
    with opened_tool(url, namespace) as tool:
        counter = tool.counter(rule, values, rules)
        _unblock(tool, counter)


def _unblock(tool: Tool, counter: Counter) -> None:
    passes, remaining, retry_us, reset_us, _ = tool.look(counter)
    if passes:
        click.echo(f"{counter.rule.name}: not denied, {remaining + 1} left; nothing was changed")
        return
    if retry_us == UNKNOWN:
        retry_us = reset_us  # at the latest
    tool.reset(counter)
    click.echo(f"{counter.rule.name}: unblocked; it was denied for another {_seconds(retry_us)}")


def _say_reset(counter: Counter, was_there: bool) -> None:
    said = "forgotten" if was_there else "nothing was counted"
    click.echo(f"{counter.rule.name}: {said}")


def _seconds(micros: int) -> str:
    return "never" if micros == NEVER else f"{micros / 1_000_000:g} s"
