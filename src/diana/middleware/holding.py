"""Places (`algo: C`) are given back when the answer has been sent, or will not be: what the middlewares share for that.

A client that leaves gives its place back when the app is done with it: as long as the app works for it, it is inside.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from diana.places import AcquiredSlots

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

LAST_UNLESS_MORE = frozenset({"http.response.body", "websocket.http.response.body"})
ALWAYS_LAST = frozenset({"websocket.close", "http.response.pathsend"})


def send_and_release(send: Send, held: AcquiredSlots) -> Send:
    """`send` that gives the places back behind the last piece of the answer, though the app may have more to do."""
    has_trailers = False

    async def sending(message: Message) -> None:
        nonlocal has_trailers
        await send(message)
        kind = message["type"]
        if kind == "http.response.start":
            has_trailers = bool(message.get("trailers"))
        elif kind in LAST_UNLESS_MORE:
            if not message.get("more_body") and not has_trailers:
                held.release()
        elif kind in ALWAYS_LAST or (
            kind == "http.response.trailers" and not message.get("more_trailers")
        ):
            held.release()

    return sending
