"""New kinds of things by entry points: one file and one line in a `pyproject.toml`, ours or a stranger's.

Nothing is imported before it is first asked for: reading the installed packages costs more than `import diana`.
"""

from __future__ import annotations

import os
import re
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from diana.core.errors import ConfigError, shown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from diana.core.contracts import Algorithm

importing = threading.RLock()
"""Held while a plug-in is imported. A fork waits for it: a child would inherit the import lock of a half imported module, held for ever."""


def _after_fork_in_child() -> None:
    global importing
    importing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: importing.acquire(),
        after_in_parent=lambda: importing.release(),
        after_in_child=_after_fork_in_child,
    )


@cache
def entries(group: str) -> dict[str, EntryPoint]:
    """The entry points of `diana.<group>` by lower-case name; two packages that claim one name are an error."""
    with importing:
        from importlib.metadata import entry_points

        offered = entry_points(group=f"diana.{group}")
    found: dict[str, EntryPoint] = {}
    for entry in offered:
        name = entry.name.lower()
        if name in found and found[name].value != entry.value:
            raise ConfigError(
                f"two packages offer {entry.name!r} in diana.{group}: {found[name].value} and {entry.value}; remove one"
            )
        found[name] = entry
    return found


@cache
def plugin(group: str, name: str) -> Any:
    """The thing behind one entry point, imported on first use."""
    known = entries(group)
    entry = known.get(name.lower())
    if entry is None:
        raise ConfigError(
            f"nothing called {shown(name)} in diana.{group}; there is {', '.join(sorted(known)) or 'nothing installed'}"
        )
    try:
        with importing:
            return entry.load()
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package in ("", "diana"):
            raise
        raise ConfigError(
            f"{shown(name)} in diana.{group} needs the package {package}, which is not installed; "
            f"run pip install {_which_brings(package, entry)}"
        ) from None


def _which_brings(package: str, entry: EntryPoint) -> str:
    """The extra of the plug-in's own distribution that has the package; else the package by the name it is imported by."""
    wanted = package.lower().replace("_", "-")
    for requirement in (entry.dist.requires or ()) if entry.dist else ():
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower().replace("_", "-")
        extra = re.search(r"""extra\s*==\s*["']([^"']+)""", requirement)
        if name == wanted and extra and entry.dist:
            return f"'{entry.dist.name}[{extra[1]}]'"
    return wanted


@cache
def algorithms() -> dict[str, Algorithm]:
    """Every installed algorithm by code."""
    found = [cast("Algorithm", plugin("algorithms", name)) for name in entries("algorithms")]
    return {algorithm.code: algorithm for algorithm in found}


@cache
def _by_spelling() -> dict[str, Algorithm]:
    """As rules mostly write them: ten thousand of them say `TB`."""
    found = algorithms().items()
    return dict(found) | {algorithm.spelling: algorithm for _, algorithm in found}


def algorithm_from_spelling(text: str) -> Algorithm:
    """`TB`, `tb` and `token bucket` are the same; `fixed window` is the window by another of its names."""
    found = _by_spelling().get(text) if isinstance(text, str) else None
    if found is not None:
        return found
    word = " ".join(text.lower().split()) if isinstance(text, str) else None
    for algorithm in algorithms().values():
        if word in (algorithm.code.lower(), algorithm.spelling, *_other_names(algorithm)):
            return algorithm
    known = ", ".join(f"{a.code} ({a.spelling})" for a in algorithms().values())
    raise ConfigError(f"{shown(text)} is no algorithm; {_meant(word)}write one of {known}")


def _other_names(algorithm: Algorithm) -> tuple[str, ...]:
    names: tuple[str, ...] = getattr(algorithm, "also_written", ())
    return names


def _meant(word: str | None) -> str:
    from difflib import get_close_matches

    spellings = {algorithm.spelling: algorithm.spelling for algorithm in algorithms().values()}
    for algorithm in algorithms().values():
        named = {name: f"{name} ({algorithm.code})" for name in _other_names(algorithm)}
        spellings |= named
    meant = (word or "")[:40].replace("-", " ").replace("_", " ")
    near = get_close_matches(meant, spellings, 1, cutoff=0.65)
    return f"did you mean {spellings[near[0]]}? " if near else ""
