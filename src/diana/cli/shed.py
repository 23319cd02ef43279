"""`diana shed FILE`: the factors of load shedding, now."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import click

from diana.cli.output import echo_json, echo_json_line, format_option, say, styled
from diana.core.errors import ConfigError
from diana.core.shed_settings import ShedSettings
from diana.rules.loading import load_rules
from diana.shedding.gauge import GaugeState
from diana.shedding.load_shedder import Shedding

PAUSE_SECONDS = 1.0
FIRST_SECONDS = 1.6
"""A processor's load is measured over a second at first."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--watch", is_flag=True, help="Once a second, until Ctrl-C.")
@click.option("--count", type=click.IntRange(1), help="With --watch: end after so many times.")
@format_option
def shed(file: Path, watch: bool, count: int | None, form: str) -> None:
    """Show the load on this machine, by the factors of FILE.

    Each with its last sample, smoothed value, level, and the share of requests that would be rejected; the worst one counts. What
    belongs to a serving process (its memory, its event loop, its requests) cannot be seen from here: its metric
    diana_shed_factor_value tells.
    """
    try:
        settings = load_rules(file).settings
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    if not settings.shed:
        raise click.ClickException(f"{file} has no shed; write shed: default, or a list of factors")
    # What is logged is shown here anyway.
    logging.getLogger("diana").addHandler(logging.NullHandler())
    shedding = Shedding()
    shedding.use(settings)
    shedding.begin()
    shown = 0
    try:
        shedding.sample(time.monotonic())
        time.sleep(FIRST_SECONDS)
        while True:
            shedding.sample(time.monotonic())
            _show(list(zip(settings.shed, shedding.states(), strict=True)), form, watch)
            shown += 1
            if not watch or shown == count:
                return
            time.sleep(PAUSE_SECONDS)
    except KeyboardInterrupt:
        pass


def _show(factors: list[tuple[ShedSettings, GaugeState]], form: str, watch: bool) -> None:
    rejects = max((state.reject for line, state in factors if not line.kind.of_process), default=0)
    if form == "json":
        found = {"reject": rejects, "factors": [_json(line, state) for line, state in factors]}
        (echo_json_line if watch else echo_json)(found)
        return
    if watch:
        say(time.strftime("%H:%M:%S"))
    for line, state in factors:
        say(_text(line, state))
    say(styled(f"rejecting {rejects} % of requests", "red" if rejects else "green"))


def _json(line: ShedSettings, state: GaugeState) -> dict[str, object]:
    if line.kind.of_process:
        return {"factor": state.factor, "of_process": True}
    return {**state._asdict(), "unit": state.unit.strip(), "of_process": False}


def _text(line: ShedSettings, state: GaugeState) -> str:
    name = f"{state.factor:<15}"
    if line.kind.of_process:
        return f"{name} of each serving process; not measured here"
    if state.value is None or state.smoothed is None:
        return f"{name} not available{f': {state.problem}' if state.problem else ''}"
    unit = state.unit
    return (
        f"{name} now {state.value:.4g}{unit}, smoothed {state.smoothed:.4g}{unit}, "
        f"level {state.level} of {len(line.levels)}, rejects {state.reject} %"
    )
