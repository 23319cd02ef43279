"""Limits on Litestar's routes."""

from diana.middleware.asgi import RateLimitMiddleware
from diana.middleware.litestar import RateLimitExceeded, add_headers, rate_limit

__all__ = ["RateLimitExceeded", "RateLimitMiddleware", "add_headers", "rate_limit"]
