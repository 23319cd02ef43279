"""The same as `outcome.py` in WSGI, where an app may name its status before it returns, or with its first piece of body."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

Settle = Callable[[int], None]


def pass_by_outcome(
    app: Callable[..., Iterable[bytes]], environ: Any, start_response: Any, settle: Settle
) -> Iterable[bytes]:
    """The app's answer; its status is settled before the first piece of it. What the app raises is a 500."""
    named: list[int] = []

    def start(status: str, headers: Any, *exc_info: Any) -> Any:
        named[:] = [int(status[:3])]  # an app may think better of it, until it has sent something
        return start_response(status, headers, *exc_info)

    try:
        body = app(environ, start)
    except Exception:
        settle(500)
        raise
    if named:
        settle(named[0])
        return body
    return _Body(body, named, settle)


class _Body:
    """The body of an app that names its status with the first piece."""

    def __init__(self, body: Iterable[bytes], named: list[int], settle: Settle) -> None:
        self._body = body
        self._named = named
        self._settle = settle

    def __iter__(self) -> Iterator[bytes]:
        pieces = iter(self._body)
        try:
            first = next(pieces, None)
        except Exception:
            self._settle(500)
            raise
        if self._named:
            self._settle(self._named[0])
        if first is not None:
            yield first
            yield from pieces

    def close(self) -> None:
        close = getattr(self._body, "close", None)
        if close is not None:
            close()
