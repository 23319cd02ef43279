"""The gateway: a chain of access log, limiter, filters and proxy; and serving it in one process or several, by the command's options."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from diana.asgi import RateLimitMiddleware
from diana.core.contracts import Observer
from diana.core.filter_settings import GatewayWorkers
from diana.gateway import server
from diana.gateway.access_log import AccessLog, Stream
from diana.gateway.client_limits import (
    DEFAULT,
    ClientLimits,
    most_connections,
    raise_descriptor_limit,
)
from diana.gateway.proxy import Proxy
from diana.gateway.upstream import Upstream, upstream_from_url
from diana.guard import AsyncGuard
from diana.rules.watch.swap_without_gc import may_tune_process
from diana.telemetry.denial_log import DenialLog
from diana.telemetry.denial_log import log as denials
from diana.web.asgi_types import App
from diana.web.identity_callbacks import refuse_code


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


@dataclass(frozen=True)
class GatewayOptions:
    upstream: str
    rules: str
    store: str | None
    local_store: str | None
    connect_timeout: float
    read_timeout: float
    body_timeout: float
    body_rate: int
    max_connections: int | None
    grace: float
    rewrite_host: bool
    allow_underscore: list[str]
    tune_process: bool
    access_log: bool
    denial_log: str | None
    """How it writes clients; None: there is none."""
    workers: int


def prepared(options: GatewayOptions, guard: AsyncGuard, log: Stream) -> tuple[App, ClientLimits]:
    """The whole chain, and what it bounds; ConfigError if something cannot be meant."""
    target = upstream_from_url(
        options.upstream,
        connect_timeout=options.connect_timeout,
        read_timeout=options.read_timeout,
        own_host=options.rewrite_host,
        underscores=tuple(options.allow_underscore),
    )
    raise_descriptor_limit(options.max_connections)
    bounds = ClientLimits(
        body_seconds=options.body_timeout,
        body_rate=options.body_rate,
        connections=most_connections(options.max_connections),
    )
    access_log = log if options.access_log else None
    app = gateway(guard, target, access_log=access_log, bounds=bounds, workers=options.workers)
    return app, bounds


def observers_of_gateway(denial_log: str | None) -> list[Observer]:
    """Denied requests are logged on stderr."""
    if denial_log is None:
        return []
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)sZ %(message)s", "%Y-%m-%dT%H:%M:%S"))
    handler.formatter.converter = time.gmtime  # type: ignore[union-attr]
    denials.setLevel(logging.INFO)
    denials.propagate = False
    denials.handlers = [handler]
    return [DenialLog(denial_log)]


def serve(
    options: GatewayOptions,
    app: App,
    bounds: ClientLimits,
    listening: socket.socket,
    announce: Callable[[], None],
) -> None:
    """Until SIGINT or SIGTERM."""
    if options.tune_process:
        may_tune_process()
    grace = max(1, round(options.grace))
    server.serve(app, listening, grace_seconds=grace, bounds=bounds, announce=announce)


def run_worker(
    options: GatewayOptions,
    listening: socket.socket,
    announce: Callable[[], None],
    log: Stream,
) -> None:
    guard = AsyncGuard.from_file(
        options.rules,
        options.store,
        local_store=options.local_store,
        observers=observers_of_gateway(options.denial_log),
    )
    try:
        app, bounds = prepared(options, guard, log)
        serve(options, app, bounds, listening, announce)
    finally:
        asyncio.run(guard.close())
