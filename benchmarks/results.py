"""RESULTS.md: the figures of the last run of each race. Writing one race's section leaves the others as they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from benchmarks.report import Section, markdown_from_section

RESULTS = Path(__file__).with_name("RESULTS.md")

PREFACE = """\
# Figures

Each section is written by `python -m benchmarks RACE --write`, run from the root of the repository with the dependency group `bench`
installed. Contestants run in turns, in short rounds, in one process, with the garbage collector on; a figure is the median over the
rounds, a ratio the median of the ratios within each round. Compare the ratios: the times are those of the machine.

The machine of these figures has two cores and other work, up to ten times as much as it has cores for. Times are several times what they
are on a quiet one, and the slowest of many, be it a request or a script call, is as slow as the machine was at that moment."""

_HEADING = re.compile(r"^## (\w+): .*$", re.MULTILINE)


def keep_in_results(sections: Sequence[Section], order: Sequence[str]) -> None:
    kept = _sections_by_name(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    today = date.today().isoformat()
    for section in sections:
        body = markdown_from_section(section, today)
        kept[section.name] = f"## {section.name}: {section.title}\n\n{body}"
    known = [name for name in order if name in kept]
    # A section whose race is gone is somebody's to delete, not ours.
    names = known + [name for name in kept if name not in known]
    text = "\n\n".join([PREFACE, *(kept[name] for name in names)])
    RESULTS.write_text(text + "\n", encoding="utf-8")


def _sections_by_name(text: str) -> dict[str, str]:
    headings = list(_HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    return {
        heading[1]: text[heading.start() : end].strip()
        for heading, end in zip(headings, ends, strict=True)
    }
