"""`diana override`: other numbers for one client, in the whole fleet, for a while."""

from __future__ import annotations

from datetime import UTC, datetime
from time import time

import click

from diana.cli.found_rule import terms_of_override
from diana.cli.output import say
from diana.cli.store_admin import Asked, Counter, counter_arguments, opened_counter
from diana.core.duration import micros_from_spelling
from diana.core.errors import ConfigError
from diana.core.limit import LARGEST_RPU
from diana.core.limit_adjustments import Override, cost_never_passes


@click.command()
@counter_arguments
@click.option(
    "--rpu",
    type=click.IntRange(0, LARGEST_RPU),
    default=None,
    help="Requests per the rule's unit (0: all of them are denied); of a rule of slots, so many at once.",
)
@click.option(
    "--burst", type=click.IntRange(0, LARGEST_RPU), default=None, help="If the algorithm has one."
)
@click.option(
    "--for", "duration", default=None, help="For how long, such as 1h. [default: without end]"
)
@click.option("--remove", is_flag=True, help="The rule's own numbers hold again.")
def override(
    asked: Asked, rpu: int | None, burst: int | None, duration: str | None, remove: bool
) -> None:
    """Give a client other numbers than its rule has.

    Arguments as for `diana peek`. The numbers hold in all tiers. What was counted stays. All nodes follow within two seconds.
    """
    if remove == (rpu is not None):
        raise click.UsageError("write --rpu N, or --remove")
    until = None if duration is None else time() + _seconds(duration)
    with opened_counter(asked, counts=False) as counter:
        _check_name(counter)
        if rpu is None:
            was_there = counter.store.override(counter.rule, counter.key, None)
            say(
                f"{counter.rule.distinct_name}: {'removed' if was_there else 'there was no override'}"
            )
            return
        wanted = Override(rpu, burst, None if until is None else int(until * 1_000_000))
        terms = terms_of_override(counter.rule, wanted)  # or it is a mistake
        if terms.most and counter.rule.cost > terms.most:
            raise ConfigError(cost_never_passes(counter.rule.cost, terms.most))
        counter.store.override(counter.rule, counter.key, wanted)
    end = "without end"
    if until is not None:
        end = f"until {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M:%S} UTC"
    say(f"{counter.rule.distinct_name}: {terms.limit} for {' '.join(counter.values)}, {end}")


def _check_name(counter: Counter) -> None:
    """Nodes find an override by the distinct name of the rule."""
    rule = counter.rule
    if rule.named is not None:
        raise click.ClickException(
            f"{rule.name} has no name of its own, so no override can name it; give the limit of the route a name="
        )
    if counter.namesakes and not rule.is_complete:
        raise click.UsageError(
            f"an override is by the rule's distinct name, and the store does not say how to tell {rule.name!r} from "
            f"{counter.namesakes} others of this name; add --rules FILE"
        )


def _seconds(duration: str) -> float:
    try:
        return micros_from_spelling(duration) / 1_000_000
    except ConfigError as error:
        raise click.UsageError(f"--for: {error}") from None
