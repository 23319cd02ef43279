"""Waiting for what must come, without guessing how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable

import redis

from diana.redis_client.reply_errors import Failure


def until(condition: Callable[[], object], wanted: str, within: float = 30.0) -> None:
    """Wait until the condition holds. A server that does not answer yet is asked again; one that never does is an error."""
    end = time.monotonic() + within
    last: Exception | None = None
    while time.monotonic() < end:
        try:
            if condition():
                return
        except (redis.RedisError, Failure) as error:
            last = error
        time.sleep(0.005)
    raise TimeoutError(f"waited {within:g} s in vain until {wanted}") from last
