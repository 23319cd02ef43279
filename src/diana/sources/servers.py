"""Several servers that know the same: one is asked until it fails, then the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event
from typing import TypeVar

from diana.core.contracts import Edition
from diana.core.errors import SourceError
from diana.sources.address import Endpoint

PAUSE_SECONDS = 0.5
"""Before everything is read anew. Where watching fails and reading does not, the rules are polled at this pace."""

Answer = TypeVar("Answer")


class Lost(SourceError):
    """This server does not answer, or not with sense; another one may."""


class Servers:
    def __init__(self, endpoints: tuple[Endpoint, ...]) -> None:
        self._endpoints = endpoints
        self._turn = 0
        self.closed = Event()

    @property
    def current(self) -> Endpoint:
        return self._endpoints[self._turn % len(self._endpoints)]

    def give_up(self, endpoint: Endpoint) -> None:
        """Ask the next one from now on."""
        if endpoint == self.current:
            self._turn += 1

    def ask(self, question: Callable[[Endpoint], Answer]) -> Answer:
        """The first answer; if nobody has one, what each of them had to say."""
        said = []
        for _ in self._endpoints:
            endpoint = self.current
            try:
                return question(endpoint)
            except Lost as error:
                said.append(f"{endpoint}: {error}")
                self.give_up(endpoint)
            if self.closed.is_set():
                break
        raise SourceError("; ".join(said))

    def follow(
        self,
        known: Edition,
        later: Callable[[Endpoint, Edition], Iterator[Edition]],
        load: Callable[[], Edition],
    ) -> Iterator[Edition]:
        """Every edition after `known`.

        `later` waits for them, and ends when it cannot tell any more: the server is lost, has forgotten what was in
        between, or the rules were deleted. Then what is there now is loaded, from whoever answers.
        """
        while not self.closed.is_set():
            endpoint = self.current
            try:
                for edition in later(endpoint, known):
                    known = edition
                    yield edition
            except Lost:
                self.give_up(endpoint)
            if self.closed.wait(PAUSE_SECONDS):
                return
            edition = load()
            if edition.version != known.version:
                known = edition
                yield edition
