"""Opening a guard for a middleware: by rules, or one that the application brings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from diana.core.contracts import Client, Clock, Observer, Store
from diana.core.errors import ConfigError, DianaError, shown
from diana.core.limit import limits_from_spelling
from diana.core.policy import Policy
from diana.guard import AsyncGuard, Guard
from diana.sources import is_url

RULES_FILE = "diana.yaml"
Rules = str | Path | Policy | Mapping[str, Any]
"""Where the rules are, a Policy, or the rules themselves as a mapping."""

Kind = TypeVar("Kind", Guard, AsyncGuard)


def check_options(
    guard: Guard | AsyncGuard | None,
    rules: Rules | None,
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
    rules: Rules | None,
    store: str | Store | Client | None,
    local_store: str | Store | None,
    clock: Clock | None,
    observers: Sequence[str | Observer],
    check: Callable[[Policy], None],
) -> Kind:
    """A guard of a policy, of a mapping, or of a file or URL, whose changes it follows. `check` raises ConfigError for rules that the
    middleware cannot use."""
    guard = _opened(kind, rules, store, local_store, clock, observers)
    try:
        guard._accept_rules_if(check)
    except ConfigError:
        guard._abandon()
        raise
    return guard


def _opened(
    kind: type[Kind],
    rules: Rules | None,
    store: str | Store | Client | None,
    local_store: str | Store | None,
    clock: Clock | None,
    observers: Sequence[str | Observer],
) -> Kind:
    options: dict[str, Any] = {"local_store": local_store, "clock": clock, "observers": observers}
    if isinstance(rules, Policy):
        return kind(rules, store, **options)
    where = RULES_FILE if rules is None else rules
    if isinstance(where, Mapping):
        return kind.from_file(where, store, **options)
    if not isinstance(where, str | Path):
        raise ConfigError(_no_rules(where))
    if isinstance(where, str) and _is_limit(where):
        raise ConfigError(
            f"rules= must be a rules file, a mapping or a Policy (got {shown(where)}, a limit); "
            'write rules={"url": "/", "rules": [{"actor": "ip", "unit": "minute", "rpu": 100}]}'
        )
    try:
        return kind.from_file(where, store, **options)
    except ConfigError as error:
        if is_url(where) or Path(where).is_absolute() or Path(where).exists():
            raise
        raise ConfigError(
            f"{error}; a relative path is looked for in the folder in which the server was started: "
            f"write rules=Path(__file__).with_name({Path(where).name!r}) or an absolute path"
        ) from None


def _no_rules(value: object) -> str:
    write = (
        "write guard=, without rules="
        if isinstance(value, Guard | AsyncGuard)
        else f'write rules="{RULES_FILE}"'
    )
    return f"rules= must be a rules file, a mapping or a Policy (got {shown(value)}); {write}"


def _is_limit(text: str) -> bool:
    try:
        limits_from_spelling(text)
    except DianaError:
        return False
    return not Path(text).exists()
