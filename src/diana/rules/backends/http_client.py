"""One request to one etcd server, by its JSON gateway.

In HTTP/1.0: there an answer ends with the connection, and a stream is lines without chunks to undo. By sockets and not by http.client,
which cannot go on reading after a pause, and which waits as long as it takes for an answer that comes in drops.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from ssl import SSLContext
from time import monotonic
from types import TracebackType
from typing import Any, Self

from diana.core.errors import SourceError
from diana.rules.backends.server_list import Endpoint, ServerLost
from diana.rules.document.yaml_tree import LARGEST_BYTES

ANSWER_SECONDS = 1.0
LONGEST_HEAD = 1 << 16
LONGEST_ANSWER = LARGEST_BYTES * 4 // 3 + (1 << 16)
"""A document as large as may be, in base64, and what stands around it."""
PIECE = 1 << 16

Payload = dict[str, Any]


class EtcdRefused(SourceError):
    """The server understood, and says no."""


class TooLong(SourceError):
    """The server says more than rules can be."""


class DeadlineRequest:
    """One connection, one request. Whatever goes wrong with it is ServerLost, EtcdRefused or TooLong."""

    def __init__(
        self,
        endpoint: Endpoint,
        tls: SSLContext | None,
        path: str,
        payload: Payload,
        token: str = "",
        seconds: float | None = None,
    ) -> None:
        self._seconds = ANSWER_SECONDS if seconds is None else seconds
        self._end = monotonic() + self._seconds
        self._received = bytearray()
        body = json.dumps(payload).encode()
        head = [f"POST {path} HTTP/1.0", f"Host: {endpoint}", f"Content-Length: {len(body)}"]
        head += ["Content-Type: application/json", "Connection: close"]
        head += [f"Authorization: {token}"] if token else []
        try:
            self._socket = socket.create_connection(endpoint, timeout=self._seconds)
        except (OSError, UnicodeError) as error:
            raise self._lost(error) from None
        try:
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=endpoint.host)
            self._socket.sendall("\r\n".join([*head, "", ""]).encode() + body)
            self._read_head()
        except OSError as error:
            self.close()
            raise self._lost(error) from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()

    def answer(self) -> dict[str, Any]:
        """All that comes."""
        return _object(self._whole())

    def next_message(self, seconds: float) -> dict[str, Any] | None:
        """The next line of a stream; None if it is not there in time, and then what has come of it is kept."""
        self._end = monotonic() + seconds
        while (end := self._received.find(b"\n")) < 0:
            try:
                more = self._receive()
            except TimeoutError:
                return None
            except TooLong as error:  # or several editions at once, none of them too long
                raise ServerLost(str(error)) from None
            except OSError as error:
                raise self._lost(error) from None
            if not more:
                raise ServerLost("the connection was closed")
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return _object(line)

    def _read_head(self) -> None:
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            if len(self._received) > LONGEST_HEAD:
                raise ServerLost("unexpected reply: not HTTP")
            if not self._receive():
                raise ServerLost("the connection was closed without an answer")
        words = bytes(self._received[:end]).split(b"\r\n", 1)[0].split()
        del self._received[: end + 4]
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise ServerLost("unexpected reply: not HTTP")
        if words[1] != b"200":
            text = self._whole()
            said = _error_text(text) or "nothing more"
            # 5xx: no leader, no quorum, a proxy without a server; and what is not JSON is not from etcd. Other servers may be well.
            is_final = words[1].startswith(b"4") and text.lstrip().startswith(b"{")
            raise (EtcdRefused if is_final else ServerLost)(
                f"etcd answered {int(words[1])}: {said}"
            )

    def _whole(self) -> bytes:
        try:
            while self._receive():
                pass
        except OSError as error:
            raise self._lost(error) from None
        return bytes(self._received)

    def _receive(self) -> bool:
        """One more piece, before the time is up; False at the end."""
        left = self._end - monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        piece = self._socket.recv(PIECE)
        self._received += piece
        if len(self._received) > LONGEST_ANSWER:
            raise TooLong(f"more than {LARGEST_BYTES:,} bytes; split the rules")
        return bool(piece)

    def _lost(self, error: OSError | UnicodeError) -> ServerLost:
        if isinstance(error, TimeoutError):
            return ServerLost(f"no answer within {self._seconds:g} s")
        return ServerLost(getattr(error, "strerror", None) or str(error) or type(error).__name__)


def _object(text: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise ServerLost("unexpected reply: not etcd's JSON")
    return answer


def _error_text(text: bytes) -> str:
    """What etcd says of an error, short and on one line."""
    try:
        answer = _object(text)
        said = str(answer.get("message") or answer.get("error") or "")
    except ServerLost:
        said = text[:200].decode("utf-8", "replace")
    return " ".join("".join(sign if sign.isprintable() else " " for sign in said[:200]).split())
