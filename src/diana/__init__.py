"""Diana: a rate limiter that is exact to the microsecond, never in the way, and open to new kinds of rules."""

from typing import TYPE_CHECKING, Any

from diana.core.decision import Decision
from diana.core.errors import ConfigError, DianaError, LimitExceeded, StoreError
from diana.decorator import limit
from diana.limiter import AsyncLimiter, Limiter
from diana.pacer import Pacer

if TYPE_CHECKING:
    __version__: str
    from diana.core.policy import Policy
    from diana.core.request import Request
    from diana.core.rule import Rule
    from diana.core.verdict import Verdict
    from diana.guard import AsyncGuard, Guard
    from diana.rules.loading import load_rules

__all__ = [
    "AsyncGuard",
    "AsyncLimiter",
    "ConfigError",
    "Decision",
    "DianaError",
    "Guard",
    "LimitExceeded",
    "Limiter",
    "Pacer",
    "Policy",
    "Request",
    "Rule",
    "StoreError",
    "Verdict",
    "limit",
    "load_rules",
]

_ON_FIRST_USE = {
    "AsyncGuard": "diana.guard",
    "Guard": "diana.guard",
    "Policy": "diana.core.policy",
    "Request": "diana.core.request",
    "Rule": "diana.core.rule",
    "Verdict": "diana.core.verdict",
    "load_rules": "diana.rules.loading",
}
"""Who only needs a Limiter does not pay for YAML."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("diana-limiter")
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module 'diana' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_ON_FIRST_USE[name]), name)
    globals()[name] = value
    return value
