"""What a race hands back, and the table it becomes."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any


@dataclass(frozen=True, slots=True)
class Goal:
    text: str
    met: bool

    def __str__(self) -> str:
        return f"{self.text}: {'ok' if self.met else 'MISSED'}"


def at_most(measured: float, bound: float, unit: str) -> Goal:
    return Goal(f"≤ {bound:g} {unit}", measured <= bound)


def at_least(measured: float, bound: float, unit: str) -> Goal:
    return Goal(f"≥ {bound:g} {unit}", measured >= bound)


@dataclass(frozen=True, slots=True)
class Figure:
    """One row."""

    what: str
    value: float
    unit: str
    ratios: Mapping[str, float] = field(default_factory=dict)
    """`{"× hand-written": 1.3}`"""
    note: str = ""
    goals: tuple[Goal, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """All rows of one race, and how they came about."""

    name: str
    title: str
    how: str
    figures: Sequence[Figure]
    libraries: tuple[str, ...] = ("diana-limiter",)
    """The distributions whose versions matter."""
    quick: bool = False

    @property
    def command(self) -> str:
        return f"python -m benchmarks {self.name}{' --quick' if self.quick else ''}"

    @property
    def circumstances(self) -> str:
        versions = ", ".join(f"{library} {version(library)}" for library in self.libraries)
        python = f"{platform.python_implementation()} {platform.python_version()}"
        return f"{python} on {os.cpu_count()} cores; {versions}"


HEADER = ("", "figure", "compared", "goal")


def text_from_sections(sections: Sequence[Section]) -> str:
    """One table for a terminal."""
    rows = [
        HEADER,
        *(_cells(figure) for section in sections for figure in section.figures),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_line(HEADER, widths), _rule(widths)]
    for section in sections:
        lines += [f"{section.name}: {section.title}"]
        lines += [_line(_cells(figure), widths) for figure in section.figures]
        lines += [_rule(widths)]
    return "\n".join([*lines, *_how_lines(sections)])


def markdown_from_section(section: Section, date: str) -> str:
    table = [_markdown_row(HEADER), "|---|--:|---|---|"]
    table += [_markdown_row(_cells(figure)) for figure in section.figures]
    made = f"`{section.command}`, {date}, {section.circumstances}."
    return "\n".join([made, "", section.how, "", *table])


def json_from_sections(sections: Iterable[Section]) -> dict[str, Any]:
    return {
        section.name: {
            "command": section.command,
            "circumstances": section.circumstances,
            "figures": [asdict(figure) for figure in section.figures],
        }
        for section in sections
    }


def _cells(figure: Figure) -> tuple[str, ...]:
    compared = [f"{_number(ratio)} {to}" for to, ratio in figure.ratios.items()]
    return (
        figure.what,
        f"{_number(figure.value)} {figure.unit}".rstrip(),
        "; ".join([*compared, *filter(None, [figure.note])]),
        "; ".join(map(str, figure.goals)),
    )


def _number(value: float) -> str:
    """Three digits that mean something, not more."""
    if value == int(value) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    what, figure, *rest = cells
    padded = [cell.ljust(width) for cell, width in zip(rest, widths[2:], strict=True)]
    return "  ".join([what.ljust(widths[0]), figure.rjust(widths[1]), *padded]).rstrip()


def _rule(widths: Sequence[int]) -> str:
    return "─" * (sum(widths) + 2 * (len(widths) - 1))


def _how_lines(sections: Sequence[Section]) -> list[str]:
    return [f"{section.name}: {section.circumstances}" for section in sections]


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
