"""`diana override`: other numbers for one client, in the whole fleet, for a while."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from time import time

import click

from diana.cli.counters import counter_arguments, opened_tool
from diana.core.duration import micros_from_spelling
from diana.core.errors import ConfigError
from diana.core.limit import Places
from diana.core.terms import Override, meter_with


@click.command()
@counter_arguments
@click.option(
    "--rpu",
    type=click.IntRange(1),
    default=None,
    help="Requests per the rule's unit; of a rule of places, so many at once.",
)
@click.option("--burst", type=click.IntRange(0), default=None, help="If the algorithm has one.")
@click.option(
    "--for", "duration", default=None, help="For how long, such as 1h. [default: without end]"
)
@click.option("--remove", is_flag=True, help="The rule's own numbers hold again.")
def override(
    url: str,
    rule: str,
    values: tuple[str, ...],
    namespace: str | None,
    rules: Path | None,
    rpu: int | None,
    burst: int | None,
    duration: str | None,
    remove: bool,
) -> None:
    """Give a client other numbers than its rule has.

    Arguments as for `diana peek`. What was counted stays. All nodes follow within two seconds.
    """
    if remove == (rpu is not None):
        raise click.UsageError("write --rpu N, or --remove")
    with opened_tool(url, namespace) as tool:
        counter = tool.counter(rule, values, rules)
        if rpu is None:
            was_there = tool.override(counter, None)
            click.echo(f"{rule}: {'removed' if was_there else 'there was no override'}")
            return
        until = None if duration is None else time() + _seconds(duration)
        wanted = Override(rpu, burst, None if until is None else int(until * 1_000_000))
        meter_with(counter.rule.meter, wanted)  # or it is a mistake
        tool.override(counter, wanted)
    end = "without end"
    if until is not None:
        end = f"until {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M:%S} UTC"
    unit = "at once" if isinstance(counter.rule.meter.limit, Places) else "per unit"
    click.echo(f"{rule}: {rpu} {unit} for {' '.join(values)}, {end}")


def _seconds(duration: str) -> float:
    try:
        return micros_from_spelling(duration) / 1_000_000
    except ConfigError as error:
        raise click.UsageError(f"--for: {error}") from None
