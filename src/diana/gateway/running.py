"""From what the command line says to a gateway that serves, in one process or in one of several workers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

from diana.gateway import server
from diana.gateway.access_log import Stream
from diana.gateway.bounds import Bounds
from diana.gateway.chain import gateway as chain
from diana.gateway.connection_limit import most_connections, raise_descriptor_limit
from diana.gateway.upstream import upstream_from_url
from diana.guard import AsyncGuard
from diana.middleware.asgi import App
from diana.sources.following.low_impact import may_tune_process


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
    workers: int


def prepared(options: GatewayOptions, guard: AsyncGuard, log: Stream) -> tuple[App, Bounds]:
    """The whole chain, and what it bounds; ConfigError if something cannot be meant."""
    target = upstream_from_url(
        options.upstream,
        connect_timeout=options.connect_timeout,
        read_timeout=options.read_timeout,
        own_host=options.rewrite_host,
        underscores=tuple(options.allow_underscore),
    )
    raise_descriptor_limit(options.max_connections)
    bounds = Bounds(
        body_seconds=options.body_timeout,
        body_rate=options.body_rate,
        connections=most_connections(options.max_connections),
    )
    access_log = log if options.access_log else None
    app = chain(guard, target, access_log=access_log, bounds=bounds, workers=options.workers)
    return app, bounds


def serve(
    options: GatewayOptions,
    app: App,
    bounds: Bounds,
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
    guard = AsyncGuard.from_file(options.rules, options.store, local_store=options.local_store)
    try:
        app, bounds = prepared(options, guard, log)
        serve(options, app, bounds, listening, announce)
    finally:
        asyncio.run(guard.close())
