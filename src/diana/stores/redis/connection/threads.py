"""A connection for threads. redis-py resolves, connects, shakes hands and logs in; from then on the socket is ours.

Why not redis-py to the end? Its time-outs count anew with every piece that arrives, so that a server that drips its answer holds a request
as long as it likes; and a socket that an event loop can watch is the same socket.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

import hiredis
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import RedisError

from diana.stores.redis.protocol.commands import Command, Lost, Moved, Spoilt, Talk
from diana.stores.redis.url import Endpoint

CONNECT_SECONDS = 1.0
PIECE = 1 << 16
EARLY_SECONDS = 0.005


def open_socket(endpoint: Endpoint, greeting: Mapping[str, Any]) -> socket.socket:
    """A socket behind which a server is ready for commands; Lost if there is none."""
    options = {
        "socket_timeout": CONNECT_SECONDS,
        "socket_connect_timeout": CONNECT_SECONDS,
        "protocol": 2,
        "client_name": "diana",
        **greeting,
    }
    secure = options.pop("tls", False)
    try:
        if endpoint.port == 0:
            by_path: Any = UnixDomainSocketConnection
            connection = by_path(path=endpoint.host, **options)
        else:
            kind: Any = SSLConnection if secure else Connection
            options |= {"host": endpoint.host, "port": endpoint.port, "socket_keepalive": True}
            connection = kind(**options)
        # What library this is nobody asks: two trips less, and a right less. The names are those of redis-py before 8, and since.
        connection.lib_name = connection.lib_version = connection.driver_info = None
        connection.connect()
    except (RedisError, OSError, ValueError) as error:
        raise Lost(f"{endpoint}: {error}") from None
    greeted: socket.socket = connection._sock
    connection._sock = None  # its disconnect would shut ours down
    return greeted


class Link:
    """One command at a time, in whatever thread."""

    def __init__(self, greeted: socket.socket) -> None:
        self._socket = greeted
        self._reader = hiredis.Reader()
        self._awaited: deque[int] = deque()
        """How many replies each command will have that was sent and has none yet."""
        self._idle = select.poll()
        self._idle.register(greeted, select.POLLIN)

    def is_stale(self) -> bool:
        """Something to read where nothing was asked: the server has closed it, or is talking to itself."""
        return bool(self._idle.poll(0))

    def converse(self, talk: Talk, deadline: float) -> Any:
        """What the talk comes to; `deadline` is monotonic seconds."""
        self.send(next(talk), deadline)
        (answer,) = self.finish([talk], deadline)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def exchange(self, packed: bytes, deadline: float) -> Any:
        """One command, one reply."""
        timeout = deadline - monotonic()
        greeted, reader = self._socket, self._reader
        try:
            greeted.settimeout(max(0.001, timeout))
            greeted.sendall(packed)
            if deadline - monotonic() < timeout - 0.001:
                greeted.settimeout(max(0.001, deadline - monotonic()))
            reader.feed(greeted.recv(PIECE))
            reply = reader.gets()
        except (OSError, hiredis.ProtocolError) as error:
            raise _lost(error, deadline) from None
        if reply is not False:
            return reply
        self._awaited.append(1)
        return self.receive(deadline)

    def finish(self, talks: Sequence[Talk], deadline: float) -> list[Any]:
        """What talks come to whose first commands were sent, in this order. An error of a talk is its answer."""
        replies = [self.receive(deadline) for _ in talks]
        answers = []
        for talk, reply in zip(talks, replies, strict=True):
            try:
                while True:
                    step = talk.send(reply)
                    self.send(step, deadline)
                    reply = self.receive(deadline)
            except StopIteration as end:
                answers.append(end.value)
            except (Moved, Spoilt) as error:
                answers.append(error)
        return answers

    def send(self, step: Command, deadline: float) -> None:
        packed = step.packed()
        try:
            self._socket.settimeout(max(0.001, deadline - monotonic()))
            self._awaited.append(step.replies)
            self._socket.sendall(packed)
        except OSError as error:
            raise _lost(error, deadline) from None

    def receive(self, deadline: float) -> Any:
        """The reply to the oldest command without one; of several (to ASKING, and to what it goes before) the last."""
        reader, reply, replies = self._reader, None, self._awaited.popleft()
        try:
            while replies:
                reply = reader.gets()
                if reply is not False:
                    replies -= 1
                    continue
                left = deadline - monotonic()
                if left <= 0:
                    raise Lost("no answer within the budget")
                self._socket.settimeout(left)
                piece = self._socket.recv(PIECE)
                if not piece:
                    raise Lost("the server has closed the connection")
                reader.feed(piece)
        except (OSError, hiredis.ProtocolError) as error:
            raise _lost(error, deadline) from None
        return reply

    def close(self) -> None:
        self._socket.close()


def _lost(error: OSError | hiredis.ProtocolError, deadline: float) -> Exception:
    if isinstance(error, TimeoutError) and error.errno is None:
        if monotonic() < deadline - EARLY_SECONDS:
            return error  # not the socket's: a signal handler's
        return Lost("no answer within the budget")
    if isinstance(error, OSError):
        return Lost(f"the connection broke: {error}")
    return Lost(f"this is no answer of a server: {error}")
