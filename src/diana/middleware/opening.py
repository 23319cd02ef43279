"""Opening a guard for a middleware: by rules, or one that the application brings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from diana.core.contracts import Client, Clock, Observer, Store
from diana.core.errors import ConfigError
from diana.core.policy import Policy
from diana.guard import AsyncGuard, Guard

RULES_FILE = "diana.yaml"

Kind = TypeVar("Kind", Guard, AsyncGuard)


def check_options(
    guard: Guard | AsyncGuard | None,
    rules: str | Path | Policy | None,
    store: str | Store | Client | None,
    local_store: str | Store | None,
    clock: Clock | None,
    observers: Sequence[str | Observer],
) -> None:
    """Both at once cannot be meant."""
    options = any(option is not None for option in (rules, store, local_store, clock))
    if guard is not None and (options or observers):
        raise ConfigError("a guard has its own rules, stores, clock and observers; give either")


def open_guard(
    kind: type[Kind],
    rules: str | Path | Policy | None,
    store: str | Store | Client | None,
    local_store: str | Store | None,
    clock: Clock | None,
    observers: Sequence[str | Observer],
) -> Kind:
    """A guard of a policy, or of a file or URL, whose changes it follows."""
    if isinstance(rules, Policy):
        return kind(rules, store, local_store=local_store, clock=clock, observers=observers)
    where = rules or RULES_FILE
    return kind.from_file(where, store, local_store=local_store, clock=clock, observers=observers)
