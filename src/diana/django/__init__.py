"""Rules as a Django middleware, and limits on Django's views."""

from diana.django.middleware import RateLimitMiddleware, user
from diana.django.views import rate_limit

__all__ = ["RateLimitMiddleware", "rate_limit", "user"]
