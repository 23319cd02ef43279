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
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any
from weakref import WeakSet, finalize

from hiredis import ReplyError

from diana.stores.lock import fork_safe_lock
from diana.stores.redis.connection.loop import Turn
from diana.stores.redis.connection.threads import Link
from diana.stores.redis.protocol.commands import Lost, NoLink, ServerClock, Talk, checked, pack
from diana.stores.redis.protocol.script import TOO_LATE, scripts
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
        wake: Callable[[Server], None],
        count: Callable[..., None],
        slot_of: Callable[[bytes], int] | None = None,
    ) -> None:
        """`slot_of`: in a cluster one script call reaches no further than a slot."""
        self.endpoint = endpoint
        self.greeting = greeting
        self.clock = ServerClock()
        self._reason_is_known = True
        self.down = False
        """The breaker: open while the server is lost."""
        self.known_to_it = False
        """Our scripts are loaded."""
        self._budget = budget
        self._wake = wake
        self._count = count
        self._slot_of = slot_of
        # No Condition: a signal handler that raises in its Python code leaves it locked for ever. And a link that is lost to
        # such a handler is gone from the set when nobody holds it any more.
        self._free: SimpleQueue[Link | None] = SimpleQueue()
        self._links: WeakSet[Link] = WeakSet()
        self._waiting = 0
        self._lock = fork_safe_lock()
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
        words = (b"EVALSHA", scripts()["acquire"].sha, len(keys), *keys, *times, *argv)
        packed = pack(words)
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
        return turn if turn is not None and turn.loop is loop else self._new_turn(loop)

    def _new_turn(self, loop: asyncio.AbstractEventLoop) -> Turn:
        with self._lock:
            gone = [known for known, turn in self._turns.items() if turn.loop.is_closed()]
            turns = [self._turns.pop(known) for known in gone]
            turn = self._turns[id(loop)] = Turn(
                loop,
                self.clock,
                self._budget,
                self._want_turn,
                self.lost,
                self._count_trip,
                self._slot_of,
            )
        for other in turns:
            other.close()
        return turn

    def lost(self, error: Lost | NoLink) -> None:
        """Open the breaker; said once."""
        with self._lock:
            if self.down or self._closed:
                return
            self.down = True
            self.known_to_it = False
            self._reason_is_known = not isinstance(error, NoLink)
        self._count("breaker_opened")
        log.warning(
            "the store %s is lost (%s); each rule does what its when_down says",
            self.endpoint,
            error,
        )
        self.drop_links()
        self._wake(self)

    def still_lost(self, error: Exception) -> None:
        """Why, if who found it lost could not know: that no connection came in time says nothing."""
        if not self._reason_is_known:
            self._reason_is_known = True
            log.warning("the store %s cannot be reached: %s", self.endpoint, error)

    def found(self) -> None:
        """Close the breaker; said once."""
        if self.down:
            self.down = False
            self._count("breaker_closed")
            log.warning("the store %s is back; counting globally again", self.endpoint)

    def is_short_of_links(self) -> bool:
        """Somebody waits for a link, or there is none at all."""
        links = len(self._links)
        return links < MOST_LINKS and (self._waiting > self._free.qsize() or not links)

    def add_link(self, greeted: socket.socket) -> None:
        if self._closed:
            greeted.close()
            return
        link = Link(greeted)
        finalize(
            link, greeted.close
        )  # should it be lost between two lines, to a signal handler that raised
        self._links.add(link)
        self._free.put(link)

    def next_turn(self) -> Turn | None:
        """A loop that waits for its socket, until `turn_is_served`: opening one may fail."""
        return self._turns_wanted[0] if self._turns_wanted else None

    def turn_is_served(self) -> None:
        self._turns_wanted.popleft()

    def drop_links(self) -> None:
        """Those not in use; a link in use is dropped by its user. Who waits for one is told that none will come."""
        while (link := self._next_free()) is not None:
            self._drop(link)
        for _ in range(self._waiting):
            self._free.put(None)

    def _next_free(self) -> Link | None:
        try:
            while (link := self._free.get_nowait()) is None:
                pass
        except Empty:
            return None
        return link

    def close(self) -> None:
        self._closed = True
        self.down = True  # nobody asks it any more, nor waits for it
        self.drop_links()
        for turn in list(self._turns.values()):
            if turn.loop.is_closed():
                turn.close()
            else:
                _in_loop(turn.loop, turn.close)
        self._turns.clear()

    def abandon(self) -> None:
        """In a forked child: close what was not in use, and say nothing to anybody."""
        for link in self._links:
            link.close()
        for turn in self._turns.values():
            turn.abandon()

    def _borrowed(self, deadline: float) -> Link:
        while True:
            link = self._next_free() or self._awaited(deadline)
            if not link.is_stale():
                return link
            self._drop(link)

    def _awaited(self, deadline: float) -> Link:
        self._waiting += 1
        try:
            self._wake(self)
            while not (self.down or self._closed):
                left = deadline - monotonic()
                if left <= 0:
                    break
                try:
                    link = self._free.get(timeout=left)
                except Empty:
                    break
                if link is not None:
                    return link
        finally:
            self._waiting -= 1
        none_came = NoLink("no connection was ready within the budget")
        if not self._links:
            self.lost(none_came)  # those who come next shall not wait as long
        raise none_came

    def _give_back(self, link: Link) -> None:
        if self._closed or self.down:
            self._drop(link)
        else:
            self._free.put(link)

    def _drop(self, link: Link) -> None:
        link.close()
        self._links.discard(link)

    def _want_turn(self, turn: Turn) -> None:
        self._turns_wanted.append(turn)
        self._wake(self)

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
