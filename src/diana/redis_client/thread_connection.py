"""A background thread's own connection to one server, for commands that may take their time."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from diana.redis_client.connection import Connection
from diana.redis_client.redis_server import Server
from diana.redis_client.reply_errors import Failure, ProtocolError, UnknownOutcome
from diana.redis_client.time_budget import Budget
from diana.stores.redis.protocol.commands import Exchange


class ThreadConnection:
    def __init__(
        self,
        server: Server,
        seconds: float | None = None,
        budget: Callable[[float], Budget] = Budget,
    ) -> None:
        """`seconds`: how long a reply is waited for, unless told otherwise; the server's patience, if not given. `budget` makes a budget
        of them."""
        self._server = server
        self._budget = budget
        self._seconds = server.patience if seconds is None else seconds
        self._connection: Connection | None = None
        self.sent = 0.0
        """When it was last used, by the monotonic clock."""

    def exchange(self, steps: Exchange, seconds: float | None = None) -> Any:
        (answer,) = self.exchange_all([steps], seconds)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def exchange_all(self, exchanges: list[Exchange], seconds: float | None = None) -> list[Any]:
        """All are sent before any reply is read; a failure is an answer too, but UnknownOutcome is raised."""
        connection = self.connect()
        budget = self._budget(self._seconds if seconds is None else seconds)
        self.sent = monotonic()
        try:
            return connection.finish(exchanges, connection.begin(exchanges, budget), budget)
        except UnknownOutcome:
            self.hang_up()
            raise
        except Failure:
            raise
        except (TypeError, ValueError, IndexError, KeyError):  # by reading what no server says
            self.hang_up()
            raise ProtocolError from None
        except BaseException:
            self.hang_up()
            raise

    def connect(self) -> Connection:
        if self._connection is None or self._connection.is_stale():
            self.hang_up()
            self._connection = self._server.open_connection()
        return self._connection

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
