"""Rules in front of an ASGI app."""

from diana.middleware.asgi import RateLimitMiddleware

__all__ = ["RateLimitMiddleware"]
