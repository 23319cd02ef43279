"""What the servers of these tests serve: one limiter and one guard on the same store, opened when the module is imported.

Under `--preload`, and under uWSGI, that is before the workers are forked.
"""

from __future__ import annotations

import json
import os
import threading
from typing import Any

from diana import AsyncGuard, AsyncLimiter, Decision, Guard, Limiter, Request, Verdict
from diana.stores import open_store

STORE = os.environ["SERVED_STORE"]
RULES = os.environ["SERVED_RULES"]
LIMIT = 50

counters = open_store(STORE)
OPTIONS: dict[str, Any] = {"algo": "W", "align": "first", "store": counters}
limiter = Limiter(f"{LIMIT}/day", name="served", **OPTIONS)
pulse = Limiter("1000000/day", name="pulse", **OPTIONS)
guard = Guard.from_file(RULES, STORE)
slow = Limiter("1/day")
waiting = 0


def answer(
    decision: Decision, beat: Decision, verdict: Verdict, asked: Guard | AsyncGuard
) -> bytes:
    """`beat` is never denied, so the store is asked with every request: a denial would be remembered here."""
    decisions = (decision, beat, *verdict.decisions)
    told = {
        "pid": os.getpid(),
        "limiter": bool(decision),
        "guard": verdict.allowed,
        "degraded": any(one.degraded for one in decisions),
        "version": verdict.version,
        "waiting": waiting,
        "measured": any(state.value is not None for state in asked.factors),
        "threads": sorted({thread.name for thread in threading.enumerate()}),
    }
    return json.dumps(told).encode()


def take() -> bytes:
    return answer(limiter.take("k"), pulse.take("k"), guard.check(Request("GET", "/")), guard)


def wsgi(environ: Any, start_response: Any) -> list[bytes]:
    global waiting
    if environ["PATH_INFO"] == "/wait":
        # One day each, one after the other: the first sleeps, the next stands in line.
        slow.take("k")
        waiting += 1
        slow.wait("k")
    body = take()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


class Asgi:
    """With twins for coroutines; opened where the others are."""

    def __init__(self) -> None:
        self._limiter = AsyncLimiter(f"{LIMIT}/day", name="served", **OPTIONS)
        self._pulse = AsyncLimiter("1000000/day", name="pulse", **OPTIONS)
        self._guard = AsyncGuard.from_file(RULES, STORE)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        verdict = await self._guard.check(Request("GET", "/"))
        body = answer(
            await self._limiter.take("k"), await self._pulse.take("k"), verdict, self._guard
        )
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


asgi = Asgi()
