"""A request of Django releases its slots when it is over, whichever response leaves, and also if sending it fails."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import diana.django
from tests.servers.waiting import until
from tests.web import django_site  # noqa: F401  # sets Django up
from tests.web.calls import aask, ask, ask_wsgi, environ, policy, scope

from django.core.handlers.asgi import ASGIHandler  # isort: skip
from django.core.handlers.wsgi import WSGIHandler  # isort: skip
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse  # isort: skip
from django.template import engines  # isort: skip
from django.template.response import SimpleTemplateResponse  # isort: skip
from django.test import RequestFactory, override_settings  # isort: skip
from django.urls import path  # isort: skip

# Django does not close its own file either if it fails to send a response.
pytestmark = pytest.mark.filterwarnings("ignore:Unclosed file <tempfile:ResourceWarning")

DIANA = "diana.django.RateLimitMiddleware"
CONDITIONAL = "django.middleware.http.ConditionalGetMiddleware"
COMMON = "django.middleware.common.CommonMiddleware"
TWO = policy("url: /\nrules: [{name: two, algo: C, most: 2}]")
BROKEN = "{% if x %}{{ x.explode }}{% endif %}"

two_at_once = diana.django.rate_limit("2 at once")


def tagged(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello", headers={"ETag": '"1"'})


async def tagged_async(request: HttpRequest) -> HttpResponse:
    return tagged(request)


def pieces() -> Iterator[str]:
    yield "a"
    raise OSError("the stream fails")


async def async_pieces() -> AsyncIterator[str]:
    yield "a"
    raise OSError("the stream fails")


def failing_stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(pieces())


def failing_async_stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(async_pieces())


async def async_failing_async_stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(async_pieces())


class Exploding:
    def explode(self) -> str:
        raise ValueError("the template fails")


def broken(request: HttpRequest) -> SimpleTemplateResponse:
    template = engines["django"].from_string(BROKEN)
    return SimpleTemplateResponse(template, {"x": Exploding()})


async def async_broken(request: HttpRequest) -> SimpleTemplateResponse:
    return broken(request)


STREAMS = [failing_stream, failing_async_stream, async_failing_async_stream]
VIEWS = [tagged, tagged_async, broken, async_broken, *STREAMS]
urlpatterns = [
    *(path(f"{view.__name__}", view) for view in VIEWS),
    *(path(f"limited/{view.__name__}", two_at_once(view)) for view in VIEWS),
    path("slash/", tagged),
]


@pytest.fixture(autouse=True)
def site() -> Iterator[None]:
    """No garbage collection: a slot that only the collector finds is lost for seconds."""
    templates = [{"BACKEND": "django.template.backends.django.DjangoTemplates"}]
    gc.disable()
    with override_settings(ROOT_URLCONF=__name__, TEMPLATES=templates, DIANA_RULES=TWO):
        yield
    gc.enable()
    gc.collect()


def both_handlers(*middleware: str) -> list[Any]:
    with override_settings(MIDDLEWARE=middleware):
        wsgi, asgi = WSGIHandler(), ASGIHandler()
    return [
        lambda *args, **kwargs: ask_wsgi(wsgi, *args, **kwargs),
        lambda *args, **kwargs: ask(asgi, *args, **kwargs),
    ]


@pytest.mark.parametrize("path", ["/tagged", "/tagged_async"])
def test_a_response_that_another_middleware_replaces(path: str) -> None:
    known = [("If-None-Match", '"1"')]
    for asked in both_handlers(CONDITIONAL, DIANA):
        assert [asked(path, headers=known).status for _ in range(5)] == [304] * 5
    for asked in both_handlers(CONDITIONAL):
        assert [asked(f"/limited{path}", headers=known).status for _ in range(5)] == [304] * 5


def test_a_redirect_in_place_of_a_not_found() -> None:
    for asked in both_handlers(COMMON, DIANA):
        assert [asked("/slash").status for _ in range(5)] == [301] * 5


@pytest.mark.parametrize("path", ["/broken", "/async_broken"])
def test_a_response_that_cannot_be_rendered(path: str) -> None:
    for asked in both_handlers():
        assert [asked(f"/limited{path}").status for _ in range(5)] == [500] * 5
    for asked in both_handlers(DIANA):
        assert [asked(path).status for _ in range(5)] == [500] * 5


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
@pytest.mark.parametrize("view", STREAMS)
@pytest.mark.parametrize("limited", [True, False])
def test_a_stream_that_fails_under_asgi(view: Any, limited: bool) -> None:
    with override_settings(MIDDLEWARE=[] if limited else [DIANA]):
        handler = ASGIHandler()
    path = f"/limited/{view.__name__}" if limited else f"/{view.__name__}"
    for _ in range(5):
        with pytest.raises(OSError, match="the stream fails"):
            ask(handler, path)


@pytest.mark.parametrize(("path", "middleware"), [
    ("/limited/failing_async_stream", []),
    ("/limited/async_failing_async_stream", []),
    ("/limited/tagged_async", []),
    ("/failing_async_stream", [DIANA]),
    ("/tagged", [DIANA]),
])  # fmt: skip
def test_a_response_that_cannot_be_sent_under_asgi(path: str, middleware: list[str]) -> None:
    with override_settings(MIDDLEWARE=middleware):
        handler = ASGIHandler()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message.get("status"))
        if message["type"] == "http.response.body":
            raise ConnectionError

    async def play() -> None:
        for _ in range(5):
            came = [{"type": "http.request", "body": b""}]

            async def receive(came: list[Any] = came) -> Any:
                return came.pop() if came else await asyncio.Event().wait()

            with pytest.raises(ConnectionError):
                await handler(scope(path), receive, send)

    asyncio.run(play())
    assert [status for status in sent if status] == [200] * 5


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_a_client_that_leaves_during_a_stream() -> None:
    with override_settings(MIDDLEWARE=[DIANA]):
        handler = ASGIHandler()
    began = asyncio.Event()

    async def endless(request: HttpRequest) -> StreamingHttpResponse:
        async def forever() -> AsyncIterator[str]:
            while True:
                yield "a"
                began.set()
                await asyncio.Event().wait()

        return StreamingHttpResponse(forever())

    class Urls:
        urlpatterns = [path("", endless), path("tagged", tagged)]

    async def play() -> None:
        for _ in range(5):
            came: asyncio.Queue[Any] = asyncio.Queue()
            came.put_nowait({"type": "http.request", "body": b""})

            async def send(message: Any) -> None: ...

            began.clear()
            call = asyncio.ensure_future(handler(scope("/"), came.get, send))
            await began.wait()
            came.put_nowait({"type": "http.disconnect"})
            await call
        assert (await aask(handler, "/tagged")).status == 200

    with override_settings(ROOT_URLCONF=Urls):
        asyncio.run(play())


def test_a_client_that_leaves_while_a_view_runs_in_a_thread() -> None:
    inside, going_on = threading.Event(), threading.Event()
    handler = ASGIHandler()

    @two_at_once
    def slow(request: HttpRequest) -> HttpResponse:
        inside.set()
        going_on.wait()
        return HttpResponse("done")

    class Urls:
        urlpatterns = [path("slow", slow), path("quick", two_at_once(tagged))]

    async def leave() -> None:
        came: asyncio.Queue[Any] = asyncio.Queue()
        came.put_nowait({"type": "http.request", "body": b""})

        async def send(message: Any) -> None:
            raise AssertionError

        inside.clear()
        going_on.clear()
        call = asyncio.ensure_future(handler(scope("/slow"), came.get, send))
        while not inside.is_set():
            assert not call.done()
            await asyncio.sleep(0)
        came.put_nowait({"type": "http.disconnect"})
        for _ in range(50):  # until Django has cancelled the view; no thread has a part in that
            await asyncio.sleep(0)
        going_on.set()
        await call

    with override_settings(ROOT_URLCONF=Urls):
        for _ in range(5):
            asyncio.run(leave())


def test_a_stream_holds_its_slot_until_the_response_that_leaves_is_closed() -> None:
    one = diana.django.rate_limit("1 at once")
    original: list[Any] = []

    @one
    def stream(request: HttpRequest) -> StreamingHttpResponse:
        original.append(StreamingHttpResponse(["a", "b"]))
        return original[-1]

    def replacing(request: HttpRequest) -> StreamingHttpResponse:
        first = stream(request)
        return first if first.status_code == 429 else StreamingHttpResponse(first.streaming_content)

    class Urls:
        urlpatterns = [path("", replacing)]

    with override_settings(ROOT_URLCONF=Urls):
        handler = WSGIHandler()
        body: Any = handler(environ(), lambda *_: None)
        original.clear()
        assert ask_wsgi(handler).status == 429
        body.close()
        assert ask_wsgi(handler).body == b"ab"


def test_a_request_that_no_handler_closes_releases_its_slot_when_it_is_freed() -> None:
    limited = diana.django.rate_limit("1 at once")(tagged)
    for _ in range(3):
        until(lambda: limited(RequestFactory().get("/")).status_code == 200, "it is released")
