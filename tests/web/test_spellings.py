"""Thousands of spellings against real handlers: no request that reaches a limited handler goes uncounted."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable
from http.client import HTTPConnection, HTTPException

import pytest

import tests.web.django_site  # noqa: F401  # configures Django
from diana import Request
from diana.web.asgi_types import App
from tests.servers.nginx import Nginx
from tests.web.calls import Answer, aask, ask_wsgi
from tests.web.conftest import Start
from tests.web.spelled import (
    NGINX,
    ROUTES,
    fastapi_app,
    flask_app,
    rules,
    starlette_app,
)
from tests.web.spellings import spellings

from django.core.handlers.asgi import ASGIHandler  # isort: skip
from django.core.handlers.wsgi import WSGIHandler  # isort: skip
from django.test import override_settings  # isort: skip

PATHS = spellings(3_600)
SOME = PATHS[::3]
"""For what is much like another one."""
FEW = PATHS[::9]
"""For servers, of which each answers in its own time."""

Asked = tuple[str, bytes, Iterable[str]]
"""A path, the body of the answer, and the names of the rules that were asked."""


def check(asked: Iterable[Asked], least: int) -> None:
    """Whoever was reached was counted; and enough were reached, in different spellings, for that to mean something."""
    reached: Counter[str] = Counter()
    uncounted = []
    for path, body, counted in asked:
        found = re.fullmatch(rb"reached (\w+)", body)
        if found:
            name = found[1].decode()
            reached[name] += 1
            if name not in counted:
                uncounted.append((path, name))
    assert uncounted == []
    assert set(reached) == set(ROUTES)
    assert reached.total() >= least, reached


def announced(answer: Answer) -> list[str]:
    return re.findall(r'"(\w+)";q', ",".join(answer.lines("ratelimit-policy")))


def through_asgi(app: App, paths: Iterable[str], root_path: str = "") -> list[Asked]:
    async def answers() -> list[Asked]:
        return [
            (path, answer.body, announced(answer))
            for path in paths
            for answer in [await aask(app, path, root_path=root_path)]
        ]

    return asyncio.run(answers())


def through(ask: Callable[[str], Answer], paths: Iterable[str]) -> Iterable[Asked]:
    for path in paths:
        answer = ask(path)
        yield path, answer.body, announced(answer)


def test_there_are_enough_different_spellings() -> None:
    assert len(set(PATHS)) == len(PATHS) >= 3_500
    assert spellings(3_600) == PATHS, "the same on every run"


def test_starlette() -> None:
    app = starlette_app()
    check(through_asgi(app, PATHS), 500)


@pytest.mark.parametrize("root_path", ["", "/api"])
def test_fastapi(root_path: str) -> None:
    check(through_asgi(fastapi_app(), SOME if root_path else PATHS, root_path), 150)


@pytest.mark.parametrize("script", ["", "/api"])
def test_flask(script: str) -> None:
    app = flask_app()
    check(through(lambda path: ask_wsgi(app, path, script=script), SOME if script else PATHS), 150)


@pytest.mark.parametrize("handler", [WSGIHandler, ASGIHandler])
@pytest.mark.parametrize("forced", [None, "/api"])
def test_django(handler: type, forced: str | None, caplog: pytest.LogCaptureFixture) -> None:
    # Some versions log paths as they come, with halves of characters in them that no report can be written with.
    caplog.set_level(logging.CRITICAL, "django.request")
    with override_settings(
        ROOT_URLCONF="tests.web.spelled_urls",
        MIDDLEWARE=["diana.django.RateLimitMiddleware"],
        DIANA_RULES=rules(),
        FORCE_SCRIPT_NAME=forced,
    ):
        app = handler()
        paths = SOME if forced or handler is ASGIHandler else PATHS
        if handler is ASGIHandler:
            check(through_asgi(app, paths), 150)
        else:
            check(through(lambda path: ask_wsgi(app, path), paths), 150)


class Connection:
    """Requests over one connection, opened again whenever the server has had enough of it."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=30)

    def ask(self, path: str) -> Answer:
        try:
            self._connection.request("GET", path)
            response = self._connection.getresponse()
            return Answer(response.status, response.getheaders(), response.read())
        except (HTTPException, OSError):
            self._connection.close()
            return Answer(0, [], b"")

    def close(self) -> None:
        self._connection.close()


def over_sockets(port: int, paths: Iterable[str]) -> Iterable[Asked]:
    connection = Connection(port)
    try:
        yield from through(connection.ask, paths)
    finally:
        connection.close()


SERVED = "tests.web.spelled"
SERVERS = {
    "uvicorn": ["-m", "uvicorn", f"{SERVED}:asgi", "--port={port}", "--no-access-log"],
    "uvicorn h11": ["-m", "uvicorn", f"{SERVED}:asgi", "--port={port}", "--http=h11", "--no-access-log"],
    "uvicorn root path": ["-m", "uvicorn", f"{SERVED}:asgi", "--port={port}", "--root-path=/api", "--no-access-log"],
    "hypercorn": ["-m", "hypercorn", f"{SERVED}:asgi", "--bind=127.0.0.1:{port}"],
    "hypercorn root path": ["-m", "hypercorn", f"{SERVED}:asgi", "--bind=127.0.0.1:{port}", "--root-path=/api"],
    "granian": ["-m", "granian", "--interface=asgi", f"{SERVED}:asgi", "--port={port}"],
    "granian wsgi": ["-m", "granian", "--interface=wsgi", f"{SERVED}:wsgi", "--port={port}"],
    "gunicorn": ["-m", "gunicorn", f"{SERVED}:wsgi", "--bind=127.0.0.1:{port}", "--threads=2"],
    "waitress": ["-m", "waitress", "--listen=127.0.0.1:{port}", f"{SERVED}:wsgi"],
}  # fmt: skip


@pytest.mark.parametrize("server", SERVERS)
def test_servers(server: str, start: Start) -> None:
    check(over_sockets(start(*SERVERS[server]), FEW), 50)


def matched(asked: Iterable[Asked]) -> Iterable[Asked]:
    """Behind something that passes paths on as they are: which rules cover what was sent?"""
    policy = rules()
    for path, body, _ in asked:
        yield path, body, [rule.name for rule in policy.match(Request(path=path))]


def test_aiohttp(start: Start) -> None:
    command = ["-m", "aiohttp.web", "-H", "127.0.0.1", "-P", "{port}", f"{SERVED}:aiohttp_main"]
    check(matched(over_sockets(start(*command), PATHS)), 400)


@pytest.mark.parametrize("merge_slashes", [True, False])
def test_nginx(merge_slashes: bool) -> None:
    with Nginx(NGINX, merge_slashes) as nginx:
        check(matched(over_sockets(nginx.port, PATHS)), 400)
