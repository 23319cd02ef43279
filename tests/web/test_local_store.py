"""`local_store=` of every middleware: workers that share a zone share a count."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from diana import ConfigError, Guard
from diana.asgi import RateLimitMiddleware as Asgi
from diana.rules.loading import rules_from_bytes
from diana.stores.zone.store import SharedStore
from diana.wsgi import RateLimitMiddleware as Wsgi
from tests.stores.shared.zones import zone_name

RULES = rules_from_bytes(b"limits: [{url: /, rules: [{name: ours, unit: hour, rpu: 3}]}]")


@pytest.fixture
def url() -> Iterator[str]:
    with zone_name() as name:
        yield f"shared://{name}?size=4m"


async def apage(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def page(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return []


def status_of_asgi(app: Asgi) -> int:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": "/", "raw_path": b"/", "query_string": b"",
        "headers": [], "client": ("10.0.0.1", 1), "root_path": "",
    }  # fmt: skip
    asyncio.run(app(scope, None, send))  # type: ignore[arg-type]
    return int(sent[0]["status"])


def status_of_wsgi(app: Wsgi) -> int:
    said: list[str] = []
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "10.0.0.1"}
    list(app(environ, lambda status, *_: said.append(status)))
    return int(said[0][:3])


def test_middleware_of_every_kind_counts_together(url: str) -> None:
    asgi = Asgi(apage, RULES, local_store=url)
    wsgi = [Wsgi(page, RULES, local_store=where) for where in (url, SharedStore.from_url(url))]
    found = [status_of_asgi(asgi), *map(status_of_wsgi, wsgi)]
    assert found == [200, 200, 200]
    assert [status_of_asgi(asgi), *map(status_of_wsgi, wsgi)] == [503, 503, 503]
    for middleware in wsgi:
        middleware.close()


def test_a_guard_has_a_local_store_of_its_own(url: str) -> None:
    guard = Guard(RULES)
    with pytest.raises(ConfigError, match="a guard has its own rules, stores"):
        Wsgi(page, guard=guard, local_store=url)
