"""What another policy would change of `shed`, in words; beside `difference.py`, which tells of rules."""

from __future__ import annotations

from typing import NamedTuple

from diana.core.key import digest
from diana.core.policy import Policy
from diana.core.shed import ShedSettings
from diana.sources.document.difference import spelled_rosters


class ShedChange(NamedTuple):
    """A factor that is added (+), removed (-) or changed (~)."""

    sign: str
    factor: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        if self.before is None or self.after is None:
            return f"{self.sign} shed {self.factor}: {self.before or self.after}"
        return f"~ shed {self.factor}: {self.before} → {self.after}"


def shed_difference(old: Policy | None, new: Policy) -> list[ShedChange]:
    before = {} if old is None else _by_source(old)
    after = _by_source(new)
    changes = []
    for source in {**before, **after}:
        was, now = before.get(source), after.get(source)
        if was != now:
            sign = "+" if was is None else "-" if now is None else "~"
            changes.append(ShedChange(sign, source[0], was, now))
    return changes


def _by_source(policy: Policy) -> dict[tuple[str, str], str]:
    return {line.source: _shown_shedding(line) for line in policy.settings.shed}


def _shown_shedding(line: ShedSettings) -> str:
    """Options by a digest: a URL may hold a password."""
    said = ", ".join(f"{reject} % from {above}" for above, reject in line.levels)
    if line.options:
        said += f", options ({digest(line.source[1])[:8]})"
    if line.exempt:
        said += f", except {', '.join(sorted(url.spelling for url in line.exempt))}"
    return said if line.last is None else f"{said}, last {spelled_rosters((line.last,))}"
