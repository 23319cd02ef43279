"""How all verbs write: text for people, JSON for programs; color on a terminal, unless NO_COLOR is set.

Everything that a verb prints goes through this file. What is printed may come from a server, a client or a rules file, so each text is
escaped here: no control character reaches the terminal except those of `styled`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from diana.core.plain_text import plain

format_option: Callable[[Any], Any] = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json is for programs.",
)


class Styled(NamedTuple):
    """A part of a line in color or bold."""

    text: str
    color: str | None = None
    bold: bool | None = None


Line = tuple[str | Styled, ...]


def styled(text: str, color: str | None = None, *, bold: bool | None = None) -> Styled:
    return Styled(text, color, bold)


def color_by_environment() -> bool | None:
    """False if NO_COLOR is set and not empty (https://no-color.org); None: as the terminal is."""
    return False if os.environ.get("NO_COLOR") else None


def say(*parts: str | Styled, err: bool = False) -> None:
    """One line."""
    click.echo("".join(map(_drawn, parts)), err=err)


def say_text(text: str) -> None:
    """Several lines."""
    for line in text.split("\n"):
        say(line)


def say_document(content: bytes) -> None:
    """A document, byte by byte as it is, for a file or a pipe; on a terminal, escaped."""
    if sys.stdout is not None and sys.stdout.isatty():
        text = content.decode("utf-8", "backslashreplace").replace("\r\n", "\n")
        click.echo(plain(text, keep="\n\t"), nl=False)
    else:
        click.echo(content, nl=False)


def echo_json(value: object) -> None:
    click.echo(_json(value, indent=2))


def echo_json_line(value: object) -> None:
    """One of many, as they come."""
    click.echo(_json(value, indent=None))


def _drawn(part: str | Styled) -> str:
    if isinstance(part, str):
        return plain(part)
    return click.style(plain(part.text), fg=part.color, bold=part.bold) if part.text else ""


def _json(value: object, indent: int | None) -> str:
    """Letters as they are, if the output has them; characters that could control a terminal never."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(
        [sign if sign.isprintable() or sign == "\n" else json.dumps(sign)[1:-1] for sign in text]
    )
