"""`diana check`: is the rules file right, and does it mean what was meant?"""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from diana.core.errors import ConfigError
from diana.sources.rules import load_rules

FINE, MISTAKEN, UNREADABLE = 0, 1, 2


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@click.option("--strict", is_flag=True, help="Warnings count as mistakes.")
def check(files: tuple[str, ...], form: str, strict: bool) -> None:
    """Check rules files: every mistake with its line and what to write instead.

    Exits with 0 if all are right, 1 if one has mistakes, 2 if one cannot be read.
    """
    reports = [report_on(file) for file in files]
    if form == "json":
        click.echo(json.dumps(reports, indent=2, ensure_ascii=False))
    else:
        for report in reports:
            _say(report)
    sys.exit(max(_code(report, strict) for report in reports))


def report_on(file: str) -> dict[str, Any]:
    report: dict[str, Any] = {
        "file": file,
        "rules": 0,
        "mistakes": [],
        "warnings": [],
        "readable": True,
    }
    try:
        policy = load_rules(file)
    except ConfigError as error:
        report["readable"] = error.line is not None
        report["mistakes"] = [
            {
                "file": one.file or file,
                "line": one.line,
                "column": one.column,
                "path": one.path,
                "message": one.message,
            }
            for one in error.errors
        ]
    else:
        report["rules"] = len(policy.rules)
        report["warnings"] = [
            {**warning.place._asdict(), "message": warning.message} for warning in policy.warnings
        ]
    return report


def _say(report: dict[str, Any]) -> None:
    file = report["file"]
    for kind in ("mistakes", "warnings"):
        for one in report[kind]:
            said = ["warning: "] if kind == "warnings" else []
            said += [f"{one['path']}: "] if one["path"] else []
            where = (
                f"{one.get('file', file)}:{one['line']}:{one['column']}: " if one["line"] else ""
            )
            click.echo("".join([where, *said, one["message"]]))
    mistakes, warnings = len(report["mistakes"]), len(report["warnings"])
    counts = [_counted(mistakes, "mistake")] if mistakes else [_counted(report["rules"], "rule")]
    counts += [_counted(warnings, "warning")] if warnings else []
    click.echo(f"{file}: {', '.join(counts)}")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _code(report: dict[str, Any], strict: bool) -> int:
    if not report["readable"]:
        return UNREADABLE
    return MISTAKEN if report["mistakes"] or (strict and report["warnings"]) else FINE
