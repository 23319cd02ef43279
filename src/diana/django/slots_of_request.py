"""When a request of Django is over, so that its slots are released.

The response that a view or a middleware returns need not be the one that leaves: a middleware around it may return another one, or it may
fail to render. Django closes only the response that leaves, and with it the request, so the slots are tied to the request.

Django's ASGI handler closes nothing if sending the response fails. Then the task that sends it fails as well, and its slots are released
with it. A view in a thread runs in no task: the task that takes the first piece of its stream is watched, or a plain iterator itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable, Iterator
from typing import Any
from weakref import ref

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest

from diana.slots.acquired_slots import AcquiredSlots


def release_with_request(asked: HttpRequest, response: Any, held: AcquiredSlots) -> Any:
    """The response, ready to be returned; the slots are released when its request is over."""
    closing = vars(asked).get("close")
    if not isinstance(closing, _Closing):
        closing = asked.close = _Closing(asked)
    closing.held.append(held)
    if isinstance(asked, ASGIRequest):
        if not _release_if_task_fails(held):
            closing.release_with(response, held)
        if response.streaming and response.is_async:
            response.streaming_content = _WatchedStream(response.streaming_content, held)
        elif response.streaming:
            response.streaming_content = _release_if_it_fails(response.streaming_content, held)
    return response


class _Closing:
    """The `close` of one request. The request is not kept alive by it: if it is never closed, its slots are released when it is freed."""

    def __init__(self, asked: HttpRequest) -> None:
        self._asked = ref(asked)
        self.held: list[AcquiredSlots] = []
        self._dropped: list[ref[Any]] = []

    def release_with(self, response: Any, held: AcquiredSlots) -> None:
        """When the response is freed: it is dropped if the client has left while the view ran in its thread."""
        self._dropped.append(ref(response, lambda _: held.release()))

    def __call__(self) -> None:
        asked = self._asked()
        try:
            if asked is not None:
                type(asked).close(asked)
        finally:
            for held in self.held:
                held.release()


class _WatchedStream:
    """The pieces of a response. The task that takes the first one is the task that sends the response."""

    def __init__(self, pieces: AsyncIterable[bytes], held: AcquiredSlots) -> None:
        self._pieces = aiter(pieces)
        self._held: AcquiredSlots | None = held

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> bytes:
        if self._held is not None:
            _release_if_task_fails(self._held)
            self._held = None
        return await anext(self._pieces)


def _release_if_it_fails(pieces: Iterable[bytes], held: AcquiredSlots) -> Iterator[bytes]:
    try:
        yield from pieces
    except BaseException:
        held.release()
        raise


def _release_if_task_fails(held: AcquiredSlots) -> bool:
    """False if this is a thread, which runs no task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False

    def release(ended: asyncio.Task[Any]) -> None:
        if ended.cancelled() or ended.exception() is not None:
            held.release()

    if task is not None:
        task.add_done_callback(release)
    return task is not None
