"""Which requests are inside, for the factors `inflight` and `loop_lag`: from being let in until the answer is given."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from diana.middleware.wsgi_body import BodyWithEnd
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
    return BodyWithEnd(body, activity.leave)
