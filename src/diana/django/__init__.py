"""Rules as a Django middleware."""

from diana.middleware.django import RateLimitMiddleware, user

__all__ = ["RateLimitMiddleware", "user"]
