"""Give-backs that no answer waits for: one after another, in the background.

One after another, because those of one account would otherwise get into each other's way: a refund in Redis compares and swaps. Of too
many at once the rest is dropped: the charge stands, and runs off by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from os import getpid
from threading import Condition, Thread
from typing import Any

log = logging.getLogger("diana")

MOST_WAITING = 10_000
CLOSE_SECONDS = 2.0

RefundCall = Callable[[], Any]


class ThreadRefundQueue:
    """A thread of its own, started with the first call."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._pid = getpid()
        self._calls: deque[RefundCall] = deque()
        self._changed = Condition()
        self._thread: Thread | None = None
        self._busy = False
        self._closed = False

    def put(self, call: RefundCall) -> None:
        if self._pid != getpid():
            self._begin()  # a forked child: the parent's thread does the parent's
        with self._changed:
            if len(self._calls) >= MOST_WAITING or self._closed:
                return
            self._calls.append(call)
            if self._thread is None:
                self._thread = Thread(target=self._work, name="diana-settling", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """After what is waiting, for at most two seconds."""
        if self._pid != getpid():
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._calls and not self._busy, CLOSE_SECONDS)
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._calls or self._closed)
                if not self._calls:
                    return
                call, self._busy = self._calls.popleft(), True
            try:
                call()
            except Exception:
                log.exception("giving a charge back failed; it stands")


class AsyncioRefundQueue:
    """A task of its own, in whichever loop asks."""

    def __init__(self) -> None:
        self._calls: deque[RefundCall] = deque()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def put(self, call: RefundCall) -> None:
        loop = asyncio.get_running_loop()
        if len(self._calls) < MOST_WAITING:
            self._calls.append(call)
        if self._task is None or self._task.done() or self._loop is not loop:
            self._loop, self._task = loop, loop.create_task(self._work())

    async def close(self) -> None:
        task = self._task
        if task is not None and self._loop is asyncio.get_running_loop():
            await asyncio.wait({task}, timeout=CLOSE_SECONDS)

    async def _work(self) -> None:
        while self._calls:
            call = self._calls.popleft()
            try:
                await call()
            except Exception:
                log.exception("giving a charge back failed; it stands")
