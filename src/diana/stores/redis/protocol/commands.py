"""What is said to one server, step by step, and what its replies mean.

An exchange is a generator: it yields commands ready to be sent and is sent the replies. It asks for a script by its hash, and only if the
server does not know it (restarted, flushed) sends the text. It knows no socket: `connection` drives it for threads and for event loops.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol

from hiredis import ReplyError, pack_command

from diana.redis_client.reply_errors import (
    DeadlinePassed,
    ProtocolError,
    UnknownOutcome,
    failure_from_error,
)
from diana.stores.redis.protocol.scripts import TOO_LATE, Script, scripts
from diana.stores.redis.protocol.server_clock import ServerClock, monotonic_us

USE_CLUSTER = "this server is one of a cluster; write redis+cluster:// instead of redis://"


class TimeLeft(Protocol):
    """How many seconds the request may still wait."""

    left: float


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


Exchange = Generator[Command, Any, Any]


def pack(words: Sequence[Any]) -> bytes:
    """As it travels. hiredis is given bytes only: a signal handler that raises while it converts a number kills the process."""
    encoded = [word if word.__class__ is bytes else str(word).encode() for word in words]
    packed: bytes = pack_command(tuple(encoded))  # type: ignore[arg-type]  # it means a tuple of any length
    return packed


ASKING = pack(("ASKING",))


def command(*words: Any) -> Exchange:
    reply = yield Command(words)
    if isinstance(reply, ReplyError):
        raise failure_from_error(str(reply))
    return reply


def call_script(
    script: Script, keys: Sequence[bytes], argv: Sequence[Any], asking: bool = False
) -> Exchange:
    """By its hash; if the server does not know it, by its text."""
    words = words_of_call(script, keys, argv)
    reply = yield Command(words, asking)
    return (yield from finish_call(script, words, reply, asking))


def words_of_call(script: Script, keys: Sequence[bytes], argv: Sequence[Any]) -> tuple[Any, ...]:
    return (b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *argv)


def finish_call(script: Script, words: tuple[Any, ...], reply: Any, asking: bool) -> Exchange:
    """The reply to a call by hash is here; does the server want the text?"""
    if isinstance(reply, ReplyError) and str(reply).startswith("NOSCRIPT"):
        reply = yield Command((b"EVAL", script.text, *words[2:]), asking)
    if isinstance(reply, ReplyError):
        raise failure_from_error(str(reply))
    return reply


_tags = count(1)

LENIENCE_US = (1_000_000, 5_000_000)
"""How much later than its budget a command may come to the server, if it came too late before: this process is then alive, but held up
between stamping and sending."""


class Acquire:
    """One call of the script that decides: what is sent, what the reply means, and `go_on`, if it is not the ordinary one.

    It writes nothing once the waiting is over. Each call is tagged and the script returns the tag: a reply that was lost or doubled on
    the way is never taken for another's.
    """

    __slots__ = (
        "_argv",
        "_clock",
        "_keys",
        "_length",
        "_now",
        "_script",
        "_sent",
        "_tag",
        "_waiting",
        "_words",
    )

    def __init__(
        self,
        clock: ServerClock,
        keys: Sequence[bytes],
        requests: Sequence[Any],
        now: int | None,
        waiting: TimeLeft,
        count: int = 1,
        script: Script | None = None,
    ) -> None:
        """`count`: how many requests these are. Another script must take the same first words, and give as many answers."""
        self._script = scripts()["acquire"] if script is None else script
        self._clock = clock
        self._keys = keys
        self._argv = requests
        self._now = now
        self._waiting = waiting
        self._tag = b"#%d" % next(_tags)
        self._length = count + 2
        self._sent = 0

    def words(self, lenience_us: int = 0) -> tuple[Any, ...]:
        """Stamped now."""
        times: tuple[bytes, bytes]
        if self._now is None:
            self._sent = monotonic_us()
            waiting_us = int(self._waiting.left * 1_000_000)
            latest = self._clock.at(self._sent + waiting_us + lenience_us)
            times = (b"", b"%d" % latest if latest.__class__ is int else b"")
        else:
            times = (b"%d" % self._now, b"")
        argv = (*times, self._tag, *self._argv)
        self._words = words_of_call(self._script, self._keys, argv)
        return self._words

    def read(self, reply: Any) -> list[Any] | None:
        """The time and then what the script says to each request; None if it says anything else."""
        if reply.__class__ is not list or len(reply) != self._length or reply[1] != self._tag:
            return None
        at = reply[0]
        if at.__class__ is not int or reply[2] == TOO_LATE:
            return None
        if self._now is None:
            self._clock.hear(at, self._sent)
        del reply[1]
        answer: list[Any] = reply
        return answer

    def go_on(self, reply: Any, asking: bool = False) -> Exchange:
        """Gives what `read` gives, in all other cases."""
        script = self._script
        for lenience_us in (*LENIENCE_US, None):
            reply = yield from finish_call(script, self._words, reply, asking)
            answer = self.read(reply)
            if answer is not None:
                return answer
            at = time_of_refusal(reply, self._tag)
            # It was held up on its way, perhaps by this process itself; or the server's clock was set forward. Nothing was written, so
            # it may be asked again, by the time that was just heard.
            self._clock.forget()
            self._clock.hear(at, self._sent)
            if lenience_us is not None:
                reply = yield Command(self.words(lenience_us), asking)
        raise DeadlinePassed("the command came to the server after its deadline")


def acquire(
    clock: ServerClock,
    keys: Sequence[bytes],
    requests: Sequence[Any],
    now: int | None,
    waiting: TimeLeft,
    asking: bool = False,
    count: int = 1,
    script: Script | None = None,
) -> Exchange:
    """Decide one request; gives the time and what the script says to it."""
    call = Acquire(clock, keys, requests, now, waiting, count, script)
    reply = yield Command(call.words(), asking)
    answer = call.read(reply)
    return (yield from call.go_on(reply, asking)) if answer is None else answer


def time_of_refusal(reply: Any, tag: bytes) -> int:
    """When the script had to say that it is too late; if that is not what it has said, what is wrong is raised."""
    if reply.__class__ is list and len(reply) == 3 and reply[1] == tag and reply[2] == TOO_LATE:
        at = reply[0]
        if at.__class__ is int:
            return int(at)
    elif is_of_another_command(reply, tag):
        raise UnknownOutcome("a reply to another command: one was lost or doubled on the way")
    raise ProtocolError


def is_of_another_command(reply: Any, tag: bytes = b"#") -> bool:
    """A script of ours has said it, but not to this."""
    if reply.__class__ is not list or len(reply) < 2:
        return False
    first, second = reply[:2]
    if first.__class__ is list:
        return True
    return second.__class__ is bytes and second.startswith(b"#") and second != tag


def hear_time(clock: ServerClock) -> Exchange:
    """What time is it there?"""
    sent = monotonic_us()
    reply = yield from command("TIME")
    if reply.__class__ is not list or len(reply) != 2:
        raise ProtocolError
    clock.hear(int(reply[0]) * 1_000_000 + int(reply[1]), sent)


def reset_counters(
    clock: ServerClock, keys: Sequence[bytes], waiting: TimeLeft, asking: bool = False
) -> Exchange:
    """Forget counters; gives how many there were. Not once the waiting is over: what is counted by then shall stand."""
    latest = clock.at(monotonic_us() + int(waiting.left * 1_000_000))
    reply = yield from call_script(scripts()["reset"], keys, (latest,), asking)
    if reply == TOO_LATE:
        raise DeadlinePassed("the command came to the server after its deadline")
    return reply
