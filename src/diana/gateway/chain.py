"""The whole gateway, read from the outside in: access log, limiter, filters, proxy."""

from __future__ import annotations

from functools import partial

from diana.core.filter import GatewayWorkers
from diana.gateway.access_log import AccessLog, Stream
from diana.gateway.bounds import DEFAULT, ClientLimits
from diana.gateway.proxy import Proxy
from diana.gateway.upstream import Upstream
from diana.guard import AsyncGuard
from diana.middleware.asgi import App, RateLimitMiddleware
from diana.middleware.identity import refuse_code


def gateway(
    guard: AsyncGuard,
    upstream: Upstream,
    *,
    access_log: Stream | None = None,
    bounds: ClientLimits = DEFAULT,
    workers: int = 1,
) -> App:
    """An ASGI app that any server can run; `serve` runs it on one that is set up for it. The guard is closed by whoever made it."""
    guard._accept_rules_if(partial(refuse_code, "the gateway"))
    settings = guard.policy.settings
    app: App = Proxy(upstream, settings.proxies, bounds=bounds)
    for line in reversed(settings.filters):
        app = line.around(app, GatewayWorkers(workers, guard.zone_name))
    app = RateLimitMiddleware(app, guard=guard)
    return app if access_log is None else AccessLog(app, access_log, settings.proxies)
