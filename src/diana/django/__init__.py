"""Rules as a Django middleware, and limits on Django's views.

apps              the app `diana.django`: `manage.py check`
middleware        the middleware, sync and async
views             `@rate_limit` on views
slots_of_request  when a request is over, so that its slots are released
"""

from diana.django.middleware import RateLimitMiddleware, user
from diana.django.views import rate_limit

__all__ = ["RateLimitMiddleware", "rate_limit", "user"]
