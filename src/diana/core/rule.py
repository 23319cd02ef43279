"""A rule: whose requests, to which url, how many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from diana.core.actor import KINDS
from diana.core.allow_lists import AllowList
from diana.core.counter import CounterSpec
from diana.core.errors import ConfigError
from diana.core.limit_adjustments import Functions, Tiers
from diana.core.request import Request
from diana.core.url_pattern import Url


class FilePosition(NamedTuple):
    """Where in a file something stands: the column and the line count from 1. Of rules in code the line is 0, and the path says where."""

    line: int
    column: int
    path: str

    @property
    def spot(self) -> str:
        return f"line {self.line}" if self.line else self.path

    def mistake(self, message: str, path: str | None = None) -> ConfigError:
        """An error about what stands here, found when the rules are used. `path` is what it is about in there."""
        where = f"{self.path}.{path}" if path else self.path
        if not self.line:
            return ConfigError(message, path=where)
        return ConfigError(message, line=self.line, column=self.column, path=where)


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    url: Url
    methods: frozenset[str] | None
    """None: every method."""
    actor: str
    """As it is spelled: `account`, or `ip + header X-Tenant`."""
    key_of: Callable[[Request], str | None]
    """The key to count by; None if the request has no such identity."""
    meter: CounterSpec
    scope: str
    cost: int
    missing: str
    """No identity: `ip`, `skip`, `deny` or `together`."""
    when_down: str
    mode: str
    """`enforce`, or `shadow`: counted and reported, never denies or delays; `off` is not asked at all."""
    status: int | None
    """The answer's status when this rule denies; None: the file's."""
    body: Body | None
    block: int
    """The number of its block; `except` leaves all rules of a block alone."""
    position: FilePosition | None = None
    reads_path: bool = True
    """Its key may be another for another reading of the path."""
    kinds: frozenset[str] = KINDS
    """Which identities that code may find its actors look at."""
    key_from: Callable[[str], str] | None = None
    """The key of a value of its actor; None if that has several parts, or none."""
    tiers: Tiers | None = field(default=None, hash=False)
    overrides: Mapping[str, OverrideMeter] = field(default_factory=dict, hash=False)
    """By the key that is counted."""
    allow: tuple[AllowList, ...] = ()
    """Clients it leaves alone: who is on one of these lists."""
    only: tuple[AllowList, ...] = ()
    """Clients it is for: who is on each of these lists."""
    deny: tuple[AllowList, ...] = ()
    """Clients it denies, whatever was counted: who is on one of these lists, also if `allow` has them."""
    charge_on: Statuses | None = None
    """Answers that are charged; for all others the charge is given back. None: all are charged."""
    functions: Functions | None = None
    drop: str | None = None
    """`random`: when far more ask than can pass, chance decides who asks."""
    label: str | None = field(default=None, compare=False)
    """In metrics and for commands, where the name alone does not tell it from another rule; None: its name does."""

    @property
    def distinct_name(self) -> str:
        """The name that no other rule of its policy has."""
        return self.label or self.name

    @property
    def lists_read_path(self) -> bool:
        """Who is on its lists may be another question for another reading of the path."""
        return any(
            entry.reads_path
            for roster in (*self.allow, *self.only, *self.deny)
            for entry in roster.entries
        )

    @property
    def has_lists(self) -> bool:
        """It may leave a client alone; or it is in the shadow, and would deny one."""
        by_code = self.functions is not None and self.functions.allow is not None
        return bool(self.allow or self.only) or by_code or bool(self.deny)

    @property
    def varies(self) -> bool:
        """Whether it is asked, and under which numbers, depends on more of the request than its key."""
        return bool(
            self.tiers or self.overrides or self.allow or self.only or self.functions is not None
        )

    @property
    def rpu(self) -> int:
        return self.meter.limit.rpu

    def __str__(self) -> str:
        code = self.meter.algorithm.code
        return f"{self.url.spelling}: {self.meter.limit} by {self.actor}, {code}, {self.scope}"


class OverrideMeter(NamedTuple):
    """An override of a rules file, made ready."""

    meter: CounterSpec
    until_us: int | None


class Statuses(NamedTuple):
    """Statuses of answers: `401, 403, 5xx`."""

    spelling: str
    numbers: frozenset[int]


class Body(NamedTuple):
    """What a denied client reads; None: Diana's own words."""

    text: str | None = None
    html: str | None = None
    json: str | None = None
