"""An answer of WSGI, and what is to be done when it is over: the last piece was taken, or the server closes it, as it has to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator


class BodyWithEnd:
    """`at_end` is called once. An iterator that is dropped half-way ends nothing: the server may go on with another."""

    def __init__(self, body: Iterable[bytes], at_end: Callable[[], None]) -> None:
        self._body = body
        self._at_end: Callable[[], None] | None = at_end

    def __iter__(self) -> Iterator[bytes]:
        yield from self._body
        self._end()

    def close(self) -> None:
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._end()

    def _end(self) -> None:
        at_end, self._at_end = self._at_end, None
        if at_end is not None:
            at_end()
