"""Rules in front of a WSGI app."""

from diana.middleware.wsgi import RateLimitMiddleware

__all__ = ["RateLimitMiddleware"]
