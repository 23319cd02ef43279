"""What is said to one server, step by step, and what its replies mean.

An exchange is a generator: it yields commands ready to be sent and is sent the replies. It asks for a script by its hash, and only if the
server does not know it (restarted, flushed) sends the text. It knows no socket: `connection` drives it for threads and for event loops.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol

from hiredis import ReplyError, pack_command

from diana.stores.redis.protocol.failures import (
    Nonsense,
    NoReply,
    TooLate,
    failure_from_error,
)
from diana.stores.redis.protocol.script import TOO_LATE, Script, scripts
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
    reply = yield Command((b"EVALSHA", script.sha, len(keys), *keys, *argv), asking)
    if isinstance(reply, ReplyError) and str(reply).startswith("NOSCRIPT"):
        reply = yield Command((b"EVAL", script.text, len(keys), *keys, *argv), asking)
    if isinstance(reply, ReplyError):
        raise failure_from_error(str(reply))
    return reply


_tags = count(1)

LENIENCE_US = (0, 1_000_000, 5_000_000)
"""How much later than its budget a command may come to the server: at first not at all; more, if it came too late before, since this
process is then alive, but held up between stamping and sending."""


def acquire(
    clock: ServerClock,
    keys: Sequence[bytes],
    requests: Sequence[Any],
    now: int | None,
    waiting: TimeLeft,
    asking: bool = False,
) -> Exchange:
    """Decide requests; gives the time and then what the script says to each. It writes nothing once the waiting is over.

    Each call is tagged and the script returns the tag: a reply that was lost or doubled on the way is never taken for another's.
    """
    script = scripts()["acquire"]
    tag = b"#%d" % next(_tags)
    if now is not None:
        reply = yield from call_script(script, keys, (now, "", tag, *requests), asking)
        return check_reply(reply, tag)
    for lenience in LENIENCE_US:
        sent = monotonic_us()
        latest = clock.at(sent + int(waiting.left * 1_000_000) + lenience)
        reply = yield from call_script(script, keys, ("", latest, tag, *requests), asking)
        reply = check_reply(reply, tag)
        clock.hear(reply[0], sent)
        if reply[1] != TOO_LATE:
            return reply
        # It was held up on its way, perhaps by this process itself; or the server's clock was set forward. Nothing was written, so it
        # may be asked again, by the time that was just heard.
        clock.forget()
        clock.hear(reply[0], sent)
    raise TooLate("the command came to the server after its deadline")


def check_reply(reply: Any, tag: bytes) -> list[Any]:
    """The time and something for each request, without the tag; else it was not the script that answered this."""
    if reply.__class__ is list and len(reply) > 2 and reply[1] == tag:
        del reply[1]
        if reply[0].__class__ is int:
            answer: list[Any] = reply
            return answer
    if is_of_another_command(reply):
        raise NoReply("a reply to another command: one was lost or doubled on the way")
    raise Nonsense


def is_of_another_command(reply: Any) -> bool:
    """A script of ours has said it, but not to this."""
    if reply.__class__ is not list or len(reply) < 2:
        return False
    first, second = reply[:2]
    return first.__class__ is list or (second.__class__ is bytes and second.startswith(b"#"))


def hear_time(clock: ServerClock) -> Exchange:
    """What time is it there?"""
    sent = monotonic_us()
    reply = yield from command("TIME")
    if reply.__class__ is not list or len(reply) != 2:
        raise Nonsense
    clock.hear(int(reply[0]) * 1_000_000 + int(reply[1]), sent)


def reset_counters(
    clock: ServerClock, keys: Sequence[bytes], waiting: TimeLeft, asking: bool = False
) -> Exchange:
    """Forget counters; gives how many there were. Not once the waiting is over: what is counted by then shall stand."""
    latest = clock.at(monotonic_us() + int(waiting.left * 1_000_000))
    reply = yield from call_script(scripts()["reset"], keys, (latest,), asking)
    if reply == TOO_LATE:
        raise TooLate("the command came to the server after its deadline")
    return reply
