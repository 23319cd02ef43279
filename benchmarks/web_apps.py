"""The web applications of the race `web`: one route, bare and behind each limiter.

`python -m benchmarks.web_apps NAME REDIS_URL` serves one of them and says its port. Peers are written as their documentation writes them.
Each limiter is imported where it is used, so that one that is missing hurts no other.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
import uvloop
from fastapi import Depends, FastAPI, Request

from diana.asgi import RateLimitMiddleware
from diana.gateway.server import bound_socket
from diana.rules.loading import rules_from_bytes
from diana.web.asgi_types import App, Receive, Scope, Send

PER_SECOND = 1_000_000
"""Of each limit: never reached, and yet a log of what passed within a second stays short."""
PATH = "/api/things"
BODY = b'{"things":[1,2,3],"page":1}'
RULES = f"""
store_budget: 1s
defaults: {{unit: second, rpu: {PER_SECOND}, scope: SCOPE}}
limits:
  - url: /
    rules: [{{actor: ip}}, {{actor: header X-Account-Id}}]
  - url: /api
    rules: [{{actor: all}}]
"""

Build = Callable[[str], Awaitable[App]]
"""An application, given the URL of the store; called in the event loop that will serve it."""
KeyOf = Callable[[Request], str]


async def things(page: int = 1) -> dict[str, object]:
    return {"things": [1, 2, 3], "page": page}


async def plain(scope: Scope, receive: Receive, send: Send) -> None:
    """What `things` answers, written by hand."""
    if scope["type"] == "lifespan":
        while True:
            what = (await receive())["type"]
            await send({"type": f"{what}.complete"})
            if what == "lifespan.shutdown":
                return
    headers = [(b"content-length", b"%d" % len(BODY)), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})


class NoOp:
    """The least that a middleware can cost."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


async def bare(_: str) -> FastAPI:
    app = FastAPI()
    app.get(PATH)(things)
    return app


async def no_op(url: str) -> FastAPI:
    app = await bare(url)
    app.add_middleware(NoOp)
    return app


async def diana_local(url: str) -> FastAPI:
    app = await bare(url)
    app.add_middleware(RateLimitMiddleware, rules=_rules("local"))
    return app


async def diana_global(url: str) -> FastAPI:
    app = await bare(url)
    app.add_middleware(RateLimitMiddleware, rules=_rules("global"), store=url)
    return app


async def plain_bare(_: str) -> App:
    return plain


async def plain_no_op(_: str) -> App:
    return NoOp(plain)


async def plain_diana_local(_: str) -> App:
    return RateLimitMiddleware(plain, _rules("local"))


async def plain_diana_global(url: str) -> App:
    return RateLimitMiddleware(plain, _rules("global"), store=url)


def _rules(scope: str) -> Any:
    return rules_from_bytes(RULES.replace("SCOPE", scope).encode())


def slowapi(keys: int, *, pure: bool = True, redis: bool = False) -> Build:
    """Decorators on the route, and its middleware: the pure ASGI one, or the one that its quick start shows."""

    async def build(url: str) -> FastAPI:
        from slowapi import Limiter, _rate_limit_exceeded_handler
        from slowapi.errors import RateLimitExceeded
        from slowapi.middleware import SlowAPIASGIMiddleware, SlowAPIMiddleware

        limiter = Limiter(key_func=by_address, storage_uri=url if redis else None)
        app = FastAPI()
        app.state.limiter = limiter
        app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)  # type: ignore[arg-type]
        app.add_middleware(SlowAPIASGIMiddleware if pure else SlowAPIMiddleware)

        # The decorator wants the request to be there.
        async def route(request: Request, page: int = 1) -> dict[str, object]:  # noqa: ARG001
            return await things(page)

        for key_of in KEYS[:keys]:
            route = limiter.limit(f"{PER_SECOND}/second", key_func=key_of)(route)
        app.get(PATH)(route)
        return app

    return build


def fastapi_limiter(keys: int, *, redis: bool = False) -> Build:
    """A dependency per limit; each counts in one bucket, which all callers share."""

    async def build(url: str) -> FastAPI:
        from fastapi_limiter.depends import RateLimiter
        from pyrate_limiter import AbstractBucket, Duration, InMemoryBucket, Limiter, Rate
        from pyrate_limiter.buckets import RedisBucket
        from redis.asyncio import Redis

        rates = [Rate(PER_SECOND, Duration.SECOND)]
        dependencies = []
        for key_of in KEYS[:keys]:
            bucket: AbstractBucket = InMemoryBucket(rates)
            if redis:
                bucket = await RedisBucket.init(rates, Redis.from_url(url), key_of.__name__)
            limiter = RateLimiter(limiter=Limiter(bucket), identifier=_awaited(key_of))
            dependencies.append(Depends(limiter))
        app = FastAPI()
        app.get(PATH, dependencies=dependencies)(things)
        return app

    return build


def by_address(request: Request) -> str:
    return request.client.host if request.client else "127.0.0.1"


def by_account(request: Request) -> str:
    return request.headers.get("X-Account-Id", "")


def in_total(request: Request) -> str:  # noqa: ARG001
    return "all"


KEYS: tuple[KeyOf, ...] = (by_address, by_account, in_total)


def _awaited(key_of: KeyOf) -> Callable[[Request], Awaitable[str]]:
    async def key(request: Request) -> str:
        return key_of(request)

    return key


APPS: dict[str, Build] = {
    "FastAPI, bare": bare,
    "FastAPI, no-op middleware": no_op,
    "FastAPI, Diana, 3 local rules": diana_local,
    "FastAPI, slowapi, 1 limit": slowapi(1),
    "FastAPI, slowapi, 3 limits": slowapi(3),
    "FastAPI, slowapi, 3 limits, default middleware": slowapi(3, pure=False),
    "FastAPI, fastapi-limiter, 1 limit": fastapi_limiter(1),
    "FastAPI, fastapi-limiter, 3 limits": fastapi_limiter(3),
    "FastAPI, Diana, 3 global rules": diana_global,
    "FastAPI, slowapi on Redis, 1 limit": slowapi(1, redis=True),
    "FastAPI, slowapi on Redis, 3 limits": slowapi(3, redis=True),
    "FastAPI, fastapi-limiter on Redis, 1 limit": fastapi_limiter(1, redis=True),
    "FastAPI, fastapi-limiter on Redis, 3 limits": fastapi_limiter(3, redis=True),
    "plain ASGI, bare": plain_bare,
    "plain ASGI, no-op middleware": plain_no_op,
    "plain ASGI, Diana, 3 local rules": plain_diana_local,
    "plain ASGI, Diana, 3 global rules": plain_diana_global,
}


async def serve(name: str, url: str) -> None:
    app = await APPS[name](url)
    config = uvicorn.Config(app, http="httptools", access_log=False, log_level="warning")
    with bound_socket("127.0.0.1", 0) as listening:
        print(listening.getsockname()[1], flush=True)
        await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2]))
