"""click's runner with the error output apart from the output, in all versions of click."""

from __future__ import annotations

from inspect import signature
from typing import Any

from click.testing import CliRunner


def separate_runner() -> CliRunner:
    """Before click 8.2 the outputs are mixed unless one asks."""
    options: dict[str, Any] = {}
    if "mix_stderr" in signature(CliRunner).parameters:
        options["mix_stderr"] = False
    return CliRunner(**options)
