"""Throttle classes for Django REST framework."""

from diana.middleware.rest_framework import RateLimitThrottle, rate_limit

__all__ = ["RateLimitThrottle", "rate_limit"]
