"""Several servers with the same contents: one is asked until it fails, then the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event
from typing import TypeVar

from diana.core.contracts import Revision
from diana.core.errors import SourceError
from diana.sources.places.address import Endpoint

RELOAD_SECONDS = 0.5
"""Before everything is read anew. Where watching fails and reading does not, the rules are polled at this pace."""

Answer = TypeVar("Answer")


class ServerLost(SourceError):
    """This server does not reply, or with nonsense; another one may."""


class Servers:
    def __init__(self, endpoints: tuple[Endpoint, ...]) -> None:
        self._endpoints = endpoints
        self._index = 0
        self.closed = Event()

    @property
    def current(self) -> Endpoint:
        return self._endpoints[self._index % len(self._endpoints)]

    def skip(self, endpoint: Endpoint) -> None:
        """Ask the next one from now on."""
        if endpoint == self.current:
            self._index += 1

    def ask(self, request: Callable[[Endpoint], Answer]) -> Answer:
        """The first answer; if there is none, the error of every server."""
        errors = []
        for _ in self._endpoints:
            endpoint = self.current
            try:
                return request(endpoint)
            except ServerLost as error:
                errors.append(f"{endpoint}: {error}")
                self.skip(endpoint)
            if self.closed.is_set():
                break
        raise SourceError("; ".join(errors))

    def follow(
        self,
        known: Revision,
        changes_after: Callable[[Endpoint, Revision], Iterator[Revision]],
        load: Callable[[], Revision],
    ) -> Iterator[Revision]:
        """Every edition after `known`.

        `changes_after` waits for them, and ends when it cannot tell any more: the server is lost, has forgotten what was in
        between, or the rules were deleted. Then what is there now is loaded, from the first server that answers.
        """
        while not self.closed.is_set():
            endpoint = self.current
            try:
                for edition in changes_after(endpoint, known):
                    known = edition
                    yield edition
            except ServerLost:
                self.skip(endpoint)
            if self.closed.wait(RELOAD_SECONDS):
                return
            edition = load()
            if edition.version != known.version:
                known = edition
                yield edition
