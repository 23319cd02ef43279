"""`diana check`: is the rules file right, and does it mean what was meant?"""

from __future__ import annotations

import sys
from http import HTTPStatus
from pathlib import Path
from typing import Any

import click

from diana.cli.check_connect import MISTAKE, WARNING, findings
from diana.cli.output import echo_json, format_option, say, styled
from diana.core.errors import ConfigError, SourceError
from diana.rules.backends.file import FileSource
from diana.rules.document.yaml_tree import LARGEST_BYTES, SourceMap
from diana.rules.loading import is_status_written, rules_from_bytes

FINE, MISTAKEN, UNREADABLE = 0, 1, 2
STANDARD_INPUT = "standard input"
COLORS = {"fine": "green", WARNING: "yellow", MISTAKE: "red"}
WHY_ANOTHER = (
    ", the default: to load balancers and monitors it may look like a broken server; "
    "write response: {status: 429} to tell clients to slow down"
)
_STATUSES = set(HTTPStatus)


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@format_option
@click.option("--strict", is_flag=True, help="Warnings count as mistakes.")
@click.option(
    "--connect",
    is_flag=True,
    help="Also connect to the store and to rules_from, and try what nodes do there.",
)
def check(files: tuple[str, ...], form: str, strict: bool, connect: bool) -> None:
    """Check rules files for mistakes.

    Each is shown with its line and what to write instead. FILE may be -, for standard input. Exits with 0 if all are right, 1 if one has
    mistakes, 2 if one cannot be read.
    """
    reports = [report_on(file, connect=connect) for file in files]
    if form == "json":
        echo_json(reports)
    else:
        for report in reports:
            _say(report)
        for note in status_notes(reports):
            say(note)
    sys.exit(max(_code(report, strict) for report in reports))


def report_on(file: str, *, connect: bool = False) -> dict[str, Any]:
    """What is right and wrong with a file; `connect`: and with the servers that it names."""
    report: dict[str, Any] = {
        "file": file,
        "rules": 0,
        "status": None,
        "status_is_written": False,
        "mistakes": [],
        "warnings": [],
        "connections": [],
        "readable": True,
    }
    name = STANDARD_INPUT if file == "-" else file
    try:
        text = _text_of(file)
        policy = rules_from_bytes(text, name)
    except ConfigError as error:
        report["readable"] = error.line is not None
        report["mistakes"] = [
            {
                "file": one.file or name,
                "line": one.line,
                "column": one.column,
                "path": one.path,
                "message": one.message,
            }
            for one in error.errors
        ]
    else:
        report["rules"] = len(policy.rules)
        report["status"] = policy.settings.answer.status
        report["status_is_written"] = is_status_written(text)
        origin = SourceMap(name, text)
        for warning in policy.warnings:
            spot = origin.spot(warning.position.line)
            report["warnings"].append(
                {**warning.position._asdict(), **spot._asdict(), "message": warning.message}
            )
        if connect:
            report["connections"] = [one._asdict() for one in findings(policy, text, name)]
    return report


def _text_of(file: str) -> bytes:
    """ConfigError if it cannot be read."""
    if file == "-":
        return sys.stdin.buffer.read(LARGEST_BYTES + 1)
    try:
        return FileSource(Path(file)).load().text
    except SourceError as error:
        raise ConfigError(str(error)) from None


def _say(report: dict[str, Any]) -> None:
    file = STANDARD_INPUT if report["file"] == "-" else report["file"]
    for kind in ("mistakes", "warnings"):
        for one in report[kind]:
            said = ["warning: "] if kind == "warnings" else []
            said += [f"{one['path']}: "] if one["path"] else []
            where = (
                f"{one.get('file', file)}:{one['line']}:{one['column']}: " if one["line"] else ""
            )
            color = "red" if kind == "mistakes" else "yellow"
            say(styled(where, color), "".join([*said, one["message"]]))
    for one in report["connections"]:
        kind = f"{one['kind']}: " if one["kind"] == WARNING else ""
        for line in f"{one['where']}: {kind}{one['message']}".split("\n"):
            say(styled(line, COLORS[one["kind"]]))
    kinds = [one["kind"] for one in report["connections"]]
    mistakes = len(report["mistakes"]) + kinds.count(MISTAKE)
    warnings = len(report["warnings"]) + kinds.count(WARNING)
    counts = [_counted(mistakes, "mistake")] if mistakes else [_counted(report["rules"], "rule")]
    counts += [_counted(warnings, "warning")] if warnings else []
    say(styled(f"{file}: {', '.join(counts)}", "red" if mistakes else "green"))


def status_notes(reports: list[dict[str, Any]]) -> list[str]:
    """Which statuses denied requests get, each once; and of the default, why one would change it."""
    notes: dict[str, None] = {}
    for report in reports:
        if report["status"] is not None:
            status = HTTPStatus(report["status"]) if report["status"] in _STATUSES else None
            note = f"denied requests get {report['status']}" + (
                f" {status.phrase}" if status else ""
            )
            if not report["status_is_written"]:
                note += WHY_ANOTHER
            notes[note] = None
    return list(notes)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _code(report: dict[str, Any], strict: bool) -> int:
    if not report["readable"]:
        return UNREADABLE
    kinds = {one["kind"] for one in report["connections"]}
    has_mistakes = report["mistakes"] or MISTAKE in kinds
    has_warnings = report["warnings"] or WARNING in kinds
    return MISTAKEN if has_mistakes or (strict and has_warnings) else FINE
