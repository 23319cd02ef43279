"""The words of load shedding: a factor is measured, its levels say which share of requests to reject.

A factor is a plug-in: one file and an entry point in `diana.factors`. `diana.shedding` measures and chooses; this is what a rules file is
made into, and what a verdict tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from diana.core.allow_lists import AllowList
from diana.core.errors import ConfigError
from diana.core.rule import FilePosition
from diana.core.url_pattern import Url


class Level(NamedTuple):
    """From `above` on, `reject` percent of requests are rejected."""

    above: int
    reject: int


class Activity(Protocol):
    """What the middleware tells of this process, for factors that measure it."""

    @property
    def inflight(self) -> int:
        """Requests inside now: let in and not yet answered."""

    @property
    def loop(self) -> Any:
        """The event loop that serves them; None if there is none."""


Sample = Callable[[], float | None]
"""The factor now; None if that cannot be told yet, or here. What it raises is logged, and counts as None."""
Open = Callable[[Activity], Sample]
"""Called in each process when it begins to measure, and again in a forked child: open here what must be open."""


class Factor(NamedTuple):
    """`- factor: backlog` with `queue: mail` beside it is made by `backlog`, given `queue`."""

    make: Callable[..., Open]
    """`make(**options)`: check here what can be checked (ConfigError; its `path` is the option that is wrong)."""
    options: tuple[str, ...] = ()
    """Their names. Values are texts, whole numbers, true or false, and lists and mappings of them. `url` may hold `${NAME}`."""
    levels: tuple[Level, ...] = ()
    """Those of a file that writes none; without any, a file has to."""
    unit: str = ""
    """Shown behind a value: `%`, ` ms`."""
    smoothing_seconds: float = 4.0
    """The time constant: a step is followed to 63 % in so long, to 95 % in three times as long."""
    of_process: bool = False
    """It is another one in every process: what `diana shed` measures in its own says nothing."""
    needs_activity: bool = False
    """It asks the activity: only then does the middleware count."""


class ShedSettings(NamedTuple):
    """One factor of a rules file, ready to be measured."""

    name: str
    kind: Factor
    options: Mapping[str, Any]
    levels: tuple[Level, ...]
    open: Open
    exempt: tuple[Url, ...] = ()
    """Urls under which nothing is shed: `except`."""
    last: AllowList | None = None
    """Clients that are shed only when nothing else is left to shed."""
    position: FilePosition | None = None

    @property
    def source(self) -> tuple[str, str]:
        """What is measured, whatever its levels are."""
        return self.name, repr(sorted(self.options.items()))


class Shed(NamedTuple):
    """Why a request was shed."""

    factor: str
    level: int
    """From 1 on."""
    value: float
    """Smoothed, in the factor's unit."""
    above: int
    reject: int
    """Percent of requests."""
    retry_after: int
    """Seconds, jittered, so that not all come back at once."""

    def __str__(self) -> str:
        return f"shed by {self.factor} at {self.value:.4g}: from {self.above} on, {self.reject} % are rejected"


def checked_levels(levels: tuple[Level, ...], unit: str) -> tuple[Level, ...]:
    """Ascending in both numbers; ConfigError says which is not. Its `path` is the number of the level."""
    for number, level in enumerate(levels):
        if unit == "%" and level.above >= 100:
            raise ConfigError(
                f"above {level.above} is never reached: it is a percentage; write less than 100",
                path=str(number),
            )
        if not number:
            continue
        before = levels[number - 1]
        if level.above <= before.above:
            raise ConfigError(
                f"above {level.above} stands behind above {before.above}; write levels in ascending order",
                path=str(number),
            )
        if level.reject < before.reject:
            raise ConfigError(
                f"above {level.above} rejects less than above {before.above}; write at least {before.reject}",
                path=str(number),
            )
    return levels
