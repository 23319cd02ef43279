"""What every middleware is given: rules to open a guard by, or a guard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diana.core.contracts import Client, Clock, Observer, Store
from diana.core.errors import ConfigError
from diana.core.policy import Policy
from diana.guard import AsyncGuard, Guard
from diana.sources.file import load_rules

RULES_FILE = "diana.yaml"


def policy_given(
    guard: Guard | AsyncGuard | None,
    rules: str | Path | Policy | None,
    store: str | Store | Client | None,
    clock: Clock | None,
    observers: Sequence[str | Observer],
) -> Policy:
    """The guard's, or that of a file; both at once cannot be meant."""
    if guard is None:
        return rules if isinstance(rules, Policy) else load_rules(rules or RULES_FILE)
    if observers or any(given is not None for given in (rules, store, clock)):
        raise ConfigError("a guard has its own rules, store, clock and observers; give either")
    return guard.policy
