"""Limits on Starlette's routes."""

from diana.middleware.asgi import RateLimitMiddleware
from diana.middleware.starlette import rate_limit

__all__ = ["RateLimitMiddleware", "rate_limit"]
