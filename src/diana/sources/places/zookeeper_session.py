"""A session with one ZooKeeper server at a time, by kazoo.

kazoo would mend a session by itself, in its own time: as long as the session's timeout. Ours has nothing to lose with a session, so one
that does not answer within a second is dropped, and another one opened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Any

from diana.core.errors import SourceError
from diana.sources.places.address import Endpoint
from diana.sources.places.servers import ServerLost

SESSION_SECONDS = 4.0
"""What most servers allow at least."""
ANSWER_SECONDS = 1.0
NOT_ALLOWED = "ZooKeeper: permission denied; write ?auth=digest:user:password behind the path"

# kazoo tells of every attempt to connect, several times a second; the user of the source reports what is wrong, once.
log = logging.getLogger("diana.kazoo")
log.setLevel(logging.CRITICAL)


class Session:
    def __init__(
        self, auth: list[tuple[str, str]], closed: Event, first_seconds: float | None = None
    ) -> None:
        self._auth = auth
        self._first_seconds = first_seconds
        self._closed = closed
        self._client: Any = None
        self._endpoint: Endpoint | None = None

    @property
    def identity(self) -> Any:
        """The session id and password; None without a session."""
        return None if self._client is None else self._client.client_id

    @property
    def acl(self) -> list[Any] | None:
        """New nodes are for clients with the same credentials; without any, for all, as is ZooKeeper's way."""
        from kazoo.security import CREATOR_ALL_ACL

        return CREATOR_ALL_ACL if self._auth else None

    def ask(
        self, endpoint: Endpoint, request: Callable[[Any], Any], seconds: float | None = None
    ) -> Any:
        """The answer to one of kazoo's asynchronous calls, in time. That a node is there, or is not, comes as kazoo's error."""
        client = self._connected(endpoint)
        try:
            return _answered(lambda: request(client), seconds or ANSWER_SECONDS)
        except ServerLost:
            self.end()
            raise

    def end(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            # It says good-bye, and waits for an answer that a frozen server does not give.
            Thread(target=_end, args=(client,), daemon=True, name="diana-zookeeper-end").start()

    def _connected(self, endpoint: Endpoint) -> Any:
        from kazoo.client import KazooClient

        client = self._client
        if client is not None and self._endpoint == endpoint and client.connected:
            return client
        self.end()
        client = KazooClient(
            hosts=str(endpoint), timeout=SESSION_SECONDS, auth_data=self._auth, logger=log
        )
        self._client, self._endpoint = client, endpoint
        seconds, self._first_seconds = self._first_seconds or ANSWER_SECONDS, None
        if not client.start_async().wait(seconds):
            self.end()
            raise ServerLost(f"no session within {seconds:g} s")
        if self._closed.is_set():  # close() came before the client was there to be ended
            self.end()
            raise ServerLost("closed")
        return client


def _answered(ask: Callable[[], Any], seconds: float) -> Any:
    from kazoo.exceptions import (
        AuthFailedError,
        ConnectionClosedError,
        ConnectionLoss,
        KazooException,
        NoAuthError,
        NodeExistsError,
        NoNodeError,
        SessionExpiredError,
        SessionMovedError,
    )
    from kazoo.handlers.threading import KazooTimeoutError

    try:
        return ask().get(timeout=seconds)
    except (NoNodeError, NodeExistsError):
        raise
    except KazooTimeoutError:
        raise ServerLost(f"no answer within {seconds:g} s") from None
    except (ConnectionClosedError, ConnectionLoss, SessionExpiredError, SessionMovedError) as error:
        raise ServerLost(error_text(error)) from None
    except (NoAuthError, AuthFailedError):
        raise SourceError(NOT_ALLOWED) from None
    except KazooException as error:
        raise SourceError(f"ZooKeeper error: {error_text(error)}") from None
    except OSError as error:
        raise ServerLost(error.strerror or error_text(error)) from None


def error_text(error: Exception) -> str:
    return str(error) or type(error).__name__


def _end(client: Any) -> None:
    with suppress(Exception):
        client.stop()
    with suppress(Exception):
        client.close()
