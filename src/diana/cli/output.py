"""How all verbs speak: text for people, JSON for programs; colour on a terminal, unless NO_COLOR is set."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import click

format_option: Callable[[Any], Any] = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json is for programs.",
)


def colour_by_environment() -> bool | None:
    """False if NO_COLOR says so (https://no-color.org: set, and not empty); None: as the terminal is."""
    return False if os.environ.get("NO_COLOR") else None


def echo_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def echo_json_line(value: object) -> None:
    """One of many, as they come."""
    click.echo(json.dumps(value, ensure_ascii=False))
