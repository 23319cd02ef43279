"""One server: its ready links, its clock, and whether it may be asked at all.

The breaker is a flag. Whoever finds the server failing opens it, and from then on nobody asks; only the keeper, after a probe with the real
script, closes it. There is no half-open state in which some request would be the guinea pig.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import Condition
from time import monotonic
from typing import Any

from hiredis import ReplyError, pack_command

from diana.stores.redis.link import Link
from diana.stores.redis.script import TOO_LATE, scripts
from diana.stores.redis.talk import Lost, NoLink, ServerClock, Talk, checked
from diana.stores.redis.turn import Turn
from diana.stores.redis.url import Endpoint

log = logging.getLogger("diana")

MOST_LINKS = 64
"""Threads that talk to one server at a time; more than this wait for each other."""


class Server:
    def __init__(
        self,
        endpoint: Endpoint,
        greeting: Mapping[str, Any],
        budget: float,
        wake: Callable[[], None],
        count: Callable[..., None],
        slot_of: Callable[[bytes], int] | None = None,
    ) -> None:
        """`slot_of`: in a cluster one script call reaches no further than a slot."""
        self.endpoint = endpoint
        self.greeting = greeting
        self.clock = ServerClock()
        self.down = False
        """The breaker: open while the server is lost."""
        self.known_to_it = False
        """Our scripts are loaded."""
        self._budget = budget
        self._wake = wake
        self._count = count
        self._slot_of = slot_of
        self._free: deque[Link] = deque()
        self._changed = Condition()
        self._links = 0
        self._waiting = 0
        self._turns: dict[int, Turn] = {}
        self._turns_wanted: deque[Turn] = deque()
        self._closed = False

    def converse(self, talk: Talk, deadline: float) -> Any:
        """For threads: on a link that nobody else uses meanwhile."""
        (answer,) = self.begin([talk], deadline)()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def quickly(
        self, keys: list[bytes], argv: list[Any], now: int | None, deadline: float
    ) -> tuple[int, Any] | Exception | None:
        """`acquire` for threads where nothing unusual happens, without the talk around it. None: hold the talk."""
        sent = monotonic()
        latest = self.clock.at(int(deadline * 1_000_000)) if now is None else ""
        times = ("", latest) if now is None else (now, "")
        packed = pack_command(
            ("EVALSHA", scripts()["acquire"].sha, len(keys), *keys, *times, *argv)
        )
        try:
            link = self._borrowed(deadline)
        except NoLink as error:
            return error
        self._count("trips")
        try:
            reply = link.exchange(packed, deadline)
        except BaseException as error:
            self._drop(link)
            if isinstance(error, Lost):
                self.lost(error)
                return error
            raise
        self._give_back(link)
        if isinstance(reply, ReplyError):
            return None
        try:
            if checked(reply)[1] == TOO_LATE:
                return None
        except Lost as error:  # what became of it is unknown: it is not asked again
            self.lost(error)
            return error
        if now is None:
            self.clock.heard(reply[0], int(sent * 1_000_000))
        return reply[0], reply[1]

    def begin(self, talks: Sequence[Talk], deadline: float) -> Callable[[], list[Any]]:
        """Send the first command of each talk down one link; what is returned reads the answers."""
        link = self._borrowed(deadline)
        self._count("trips", len(talks))
        try:
            for talk in talks:
                link.send(next(talk), deadline)
        except BaseException as error:
            self._drop(link)
            if isinstance(error, Lost):
                self.lost(error)
            raise

        def finish() -> list[Any]:
            try:
                answers = link.finish(talks, deadline)
            except BaseException as error:
                # In the middle of a reply: the next would read the rest of it.
                self._drop(link)
                if isinstance(error, Lost):
                    self.lost(error)
                    return [error] * len(talks)
                raise
            for answer in answers:
                if isinstance(answer, Lost):
                    self._drop(link)
                    self.lost(answer)
                    return answers
            self._give_back(link)
            return answers

        return finish

    def turn_of(self, loop: asyncio.AbstractEventLoop) -> Turn:
        """This loop's connection."""
        turn = self._turns.get(id(loop))
        if turn is None or turn.loop is not loop:
            for known, other in list(self._turns.items()):
                if other.loop.is_closed():
                    other.close()
                    del self._turns[known]
            turn = Turn(
                loop,
                self.clock,
                self._budget,
                self._want_turn,
                self.lost,
                self._count_trip,
                self._slot_of,
            )
            self._turns[id(loop)] = turn
        return turn

    def lost(self, error: Lost) -> None:
        """Open the breaker; said once."""
        with self._changed:
            if self.down or self._closed:
                return
            self.down = True
            self.known_to_it = False
            self._changed.notify_all()  # no link will come for who waits for one
        self._count("breaker_opened")
        log.warning(
            "the store %s is lost (%s); each rule does what its when_down says",
            self.endpoint,
            error,
        )
        self.drop_links()
        self._wake()

    def found(self) -> None:
        """Close the breaker; said once."""
        if self.down:
            self.down = False
            self._count("breaker_closed")
            log.warning("the store %s is back; counting globally again", self.endpoint)

    def is_short_of_links(self) -> bool:
        """Somebody waits for a link, or there is none at all."""
        with self._changed:
            return self._links < MOST_LINKS and (self._waiting > len(self._free) or not self._links)

    def add_link(self, greeted: socket.socket) -> None:
        with self._changed:
            if self._closed:
                greeted.close()
                return
            self._links += 1
            self._free.append(Link(greeted))
            self._changed.notify()

    def next_turn(self) -> Turn | None:
        """A loop that waits for its socket, until `turn_is_served`: opening one may fail."""
        return self._turns_wanted[0] if self._turns_wanted else None

    def turn_is_served(self) -> None:
        self._turns_wanted.popleft()

    def drop_links(self) -> None:
        """Those not in use; a link in use is dropped by its user."""
        with self._changed:
            free, self._free = list(self._free), deque()
            self._links -= len(free)
        for link in free:
            link.close()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self.down = True  # nobody asks it any more, nor waits for it
            self._changed.notify_all()
        self.drop_links()
        for turn in list(self._turns.values()):
            if turn.loop.is_closed():
                turn.close()
            else:
                _in_loop(turn.loop, turn.close)
        self._turns.clear()

    def abandon(self) -> None:
        """In a forked child: close what was not in use, and say nothing to anybody."""
        for link in self._free:
            link.close()
        for turn in self._turns.values():
            turn.abandon()

    def _borrowed(self, deadline: float) -> Link:
        while True:
            try:
                link = self._free.pop()
            except IndexError:
                try:
                    link = self._awaited(deadline)
                except Lost as error:
                    self.lost(error)  # those who come next shall not wait as long
                    raise NoLink(str(error)) from None
            if not link.is_stale():
                return link
            self._drop(link)

    def _awaited(self, deadline: float) -> Link:
        with self._changed:
            self._waiting += 1
            try:
                self._wake()
                while not self._free:
                    left = deadline - monotonic()
                    if left <= 0 and not self._links:
                        raise Lost("no connection was ready within the budget")
                    if left <= 0 or self.down or self._closed:
                        raise NoLink("no connection was ready within the budget")
                    self._changed.wait(left)
                return self._free.pop()
            finally:
                self._waiting -= 1

    def _give_back(self, link: Link) -> None:
        if self._closed or self.down:
            self._drop(link)
            return
        self._free.append(link)
        if self._waiting:
            with self._changed:
                self._changed.notify()

    def _drop(self, link: Link) -> None:
        link.close()
        with self._changed:
            self._links -= 1

    def _want_turn(self, turn: Turn) -> None:
        self._turns_wanted.append(turn)
        self._wake()

    def _count_trip(self) -> None:
        self._count("trips")


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    try:
        if asyncio._get_running_loop() is loop:
            call()
        else:
            loop.call_soon_threadsafe(call)
    except RuntimeError:  # closed meanwhile
        call()
