"""The whole gateway, read from the outside in: access log, limiter, filters, proxy."""

from __future__ import annotations

from diana.gateway.access_log import AccessLog, Stream
from diana.gateway.exchange import BODY_SECONDS
from diana.gateway.proxy import Proxy
from diana.gateway.upstream import Upstream
from diana.guard import AsyncGuard
from diana.middleware.asgi import App, RateLimitMiddleware


def gateway(
    guard: AsyncGuard,
    upstream: Upstream,
    *,
    access_log: Stream | None = None,
    body_timeout: float = BODY_SECONDS,
) -> App:
    """An ASGI app that any server can run; `serve` runs it on one that is set up for it. The guard is closed by whoever made it."""
    settings = guard.policy.settings
    app: App = Proxy(upstream, settings.proxies, body_timeout=body_timeout)
    for line in reversed(settings.filters):
        app = line.around(app)
    app = RateLimitMiddleware(app, guard=guard)
    return app if access_log is None else AccessLog(app, access_log, settings.proxies)
