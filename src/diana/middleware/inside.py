"""Which requests are inside, for the factors `inflight` and `loop_lag`: from being let in until the answer is given."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from diana.shedding.activity import ProcessActivity


def enter_in_loop(activity: ProcessActivity) -> None:
    with suppress(RuntimeError):  # trio has none of asyncio's
        activity.loop = asyncio.get_running_loop()
    activity.enter()


def leave_after(body: Iterable[bytes], environ: Any, activity: ProcessActivity) -> Iterable[bytes]:
    """A WSGI app's answer. One that is made already is left at once; a server may also send a file in a way of its own."""
    sends_file = environ.get("wsgi.file_wrapper")
    if isinstance(body, list | tuple) or (
        isinstance(sends_file, type) and isinstance(body, sends_file)
    ):
        activity.leave()
        return body
    return _Body(body, activity)


class _Body:
    """Inside until the last piece was taken, or the server closes it: it has to, whatever happens."""

    def __init__(self, body: Iterable[bytes], activity: ProcessActivity) -> None:
        self._body = body
        self._activity: ProcessActivity | None = activity

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._body
        finally:
            self._leave()

    def close(self) -> None:
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._leave()

    def _leave(self) -> None:
        activity, self._activity = self._activity, None
        if activity is not None:
            activity.leave()
