"""Limits on FastAPI's routes."""

from diana.middleware.asgi import RateLimitMiddleware
from diana.middleware.fastapi import (
    RateLimit,
    RateLimitExceeded,
    answer,
    exempt,
    limited,
    rate_limit,
)
from diana.middleware.fastapi_route import LimitedRoute

__all__ = [
    "LimitedRoute",
    "RateLimit",
    "RateLimitExceeded",
    "RateLimitMiddleware",
    "answer",
    "exempt",
    "limited",
    "rate_limit",
]
