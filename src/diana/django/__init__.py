"""Rules as a Django middleware, and limits on Django's views."""

from diana.middleware.django import RateLimitMiddleware, user
from diana.middleware.django_view import rate_limit

__all__ = ["RateLimitMiddleware", "rate_limit", "user"]
