"""Diana: a rate limiter that is exact to the microsecond, never in the way, and open to new kinds of rules."""

from diana.core.decision import Decision
from diana.core.errors import ConfigError, DianaError, LimitExceeded, StoreError
from diana.limiter import AsyncLimiter, Limiter, limit
from diana.pacer import Pacer

__all__ = [
    "AsyncLimiter",
    "ConfigError",
    "Decision",
    "DianaError",
    "LimitExceeded",
    "Limiter",
    "Pacer",
    "StoreError",
    "limit",
]
