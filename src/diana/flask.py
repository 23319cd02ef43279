"""Limits on Flask's views."""

from diana.middleware.flask import rate_limit
from diana.middleware.wsgi import RateLimitMiddleware

__all__ = ["RateLimitMiddleware", "rate_limit"]
