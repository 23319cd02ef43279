"""Limits on FastAPI's routes."""

from diana.middleware.asgi import RateLimitMiddleware
from diana.middleware.fastapi import RateLimit, RateLimitExceeded, answer, exempt, limited

__all__ = ["RateLimit", "RateLimitExceeded", "RateLimitMiddleware", "answer", "exempt", "limited"]
