"""One command to one server, and what may come back instead of an answer.

A conversation is a generator: it yields commands ready to be sent and is sent the replies. It asks for a script by its hash, and only if
the server does not know it (restarted, flushed) sends the text; and it carries the latest time at which the script may still write. It
knows no socket: `link` drives it for threads, `turn` for event loops.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from time import monotonic_ns
from typing import Any, NamedTuple

from hiredis import ReplyError, pack_command

from diana.core.duration import SECOND_US
from diana.stores.redis.protocol.script import TOO_LATE, Script, scripts


class Lost(Exception):
    """The store did not answer, or not as a store does; what became of the command is unknown, or nothing."""


class Spoilt(Exception):
    """The server is well, but this request cannot be decided there: a counter holds something else."""


class NoLink(Exception):
    """No connection was ready in time. That alone says nothing about the server."""


class Moved(Exception):
    """The key is somewhere else; nothing was done."""

    def __init__(self, endpoint: str, asking: bool) -> None:
        super().__init__(endpoint)
        self.endpoint = endpoint
        self.asking = asking
        """For this command only: the slot is on its way."""


class Command(NamedTuple):
    words: tuple[Any, ...]
    asking: bool = False
    """Said before it: this slot may still be on its way to you."""

    def packed(self) -> bytes:
        packed = pack(self.words)
        return ASKING + packed if self.asking else packed

    @property
    def replies(self) -> int:
        return 2 if self.asking else 1


WRITE_CLUSTER = "this server is one of a cluster; write redis+cluster:// instead of redis://"


def pack(words: Sequence[Any]) -> bytes:
    """As it travels. hiredis is given bytes only: a signal handler that raises while it converts a number kills the process."""
    encoded = [word if word.__class__ is bytes else str(word).encode() for word in words]
    packed: bytes = pack_command(tuple(encoded))  # type: ignore[arg-type]  # it means a tuple of any length
    return packed


ASKING = pack(("ASKING",))

_TROUBLE = re.compile(
    r"\b(OOM|READONLY|MISCONF|NOREPLICAS|NOPERM|MASTERDOWN|CLUSTERDOWN|LOADING|BUSY)\b"
)

Talk = Generator[Command, Any, Any]


class ServerClock:
    """What time it is there, as far as its answers tell; never ahead of it.

    An answer with the server's time S that came at t says: when it is t here, it is at least S there. The best of those is kept,
    until an answer shows that the server's clock was set back.
    """

    def __init__(self) -> None:
        self._offset_us: int | None = None
        self.when_set_back: Callable[[], None] = lambda: None
        """Told when the server's clock was set back by more than the second that an algorithm waits for."""

    def heard(self, server_us: int, sent_us: int) -> None:
        known, came = self._offset_us, server_us - monotonic_us()
        if known is None or came > known:
            self._offset_us = came
        elif server_us - sent_us < known:
            self._offset_us = came
            if server_us - sent_us < known - SECOND_US:
                self.when_set_back()

    def at(self, here_us: int) -> int | str:
        """Empty while nothing was heard yet."""
        return "" if self._offset_us is None else here_us + self._offset_us

    @property
    def is_set(self) -> bool:
        return self._offset_us is not None

    def forget(self) -> None:
        self._offset_us = None


def monotonic_us() -> int:
    return monotonic_ns() // 1_000


def script_call(
    script: Script, keys: Sequence[bytes], argv: Sequence[Any], asking: bool = False
) -> Talk:
    """By its hash; if the server does not know it, by its text."""
    reply = yield Command(("EVALSHA", script.sha, len(keys), *keys, *argv), asking)
    if isinstance(reply, ReplyError) and str(reply).startswith("NOSCRIPT"):
        reply = yield Command(("EVAL", script.text, len(keys), *keys, *argv), asking)
    if isinstance(reply, ReplyError):
        raise meant_by(str(reply))
    return reply


def acquire(
    clock: ServerClock,
    keys: Sequence[bytes],
    requests: Sequence[Any],
    now: int | None,
    deadline: float,
    asking: bool = False,
) -> Talk:
    """Decide requests; gives the time and what the script gives for each. It writes nothing after the deadline."""
    script = scripts()["acquire"]
    if now is not None:
        return checked((yield from script_call(script, keys, [now, "", *requests], asking)))
    sent, given_up = monotonic_us(), int(deadline * 1_000_000)
    reply = checked(
        (yield from script_call(script, keys, ["", clock.at(given_up), *requests], asking))
    )
    clock.heard(reply[0], sent)
    if reply[1] == TOO_LATE:
        # Either it was held up on its way, or the server's clock was set forward. Nothing was written, so it may be asked again,
        # by the time that was just heard.
        clock.forget()
        clock.heard(reply[0], sent)
        reply = checked(
            (yield from script_call(script, keys, ["", clock.at(given_up), *requests], asking))
        )
        if reply[1] == TOO_LATE:
            raise Lost("the answer came too late")
    return reply


def checked(reply: Any) -> list[Any]:
    """The time, and something for each request: else it was not the script that answered."""
    if reply.__class__ is not list or len(reply) < 2 or reply[0].__class__ is not int:
        raise Lost("this is no answer of a store")
    answer: list[Any] = reply
    return answer


def command(*words: Any) -> Talk:
    reply = yield Command(words)
    if isinstance(reply, ReplyError):
        raise meant_by(str(reply))
    return reply


def hear(clock: ServerClock) -> Talk:
    """What time is it there?"""
    sent = monotonic_us()
    reply = yield from command("TIME")
    if reply.__class__ is not list or len(reply) != 2:
        raise Lost("this is no answer of a store")
    clock.heard(int(reply[0]) * 1_000_000 + int(reply[1]), sent)


def meant_by(error: str) -> Exception:
    """What a server's error means for who asked."""
    word, _, rest = error.partition(" ")
    if word in ("MOVED", "ASK"):
        return Moved(rest.rpartition(" ")[2], asking=word == "ASK")
    if word in ("TRYAGAIN", "CROSSSLOT") or "WRONGTYPE" in error:
        return Spoilt(error)
    return Lost(error)


def meant_by_failure(text: str) -> Exception:
    """What the script says when one request failed in it: is that the server's trouble, or only this counter's?"""
    return Lost(text) if _TROUBLE.search(text) else Spoilt(text)
