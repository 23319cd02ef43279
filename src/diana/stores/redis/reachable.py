"""`require_store`: is the store there, and does it accept the login? Asked once, at the start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from diana.core.errors import ConfigError, StoreError
from diana.redis_client.handshake import CONNECT_SECONDS
from diana.redis_client.redis_url import RedisAddress
from diana.redis_client.reply_errors import Failure
from diana.redis_client.time_budget import Budget
from diana.redis_client.topology import every_server
from diana.runtime.fork import is_about_to_fork
from diana.stores.redis.advice import what_to_write
from diana.stores.redis.protocol.commands import command

START_SECONDS = 3.0
"""The start waits no longer, names that must be resolved included."""


def check_address(address: RedisAddress) -> None:
    """StoreError unless all servers that have keys can be reached and accept the login."""
    _within(", ".join(map(str, address.endpoints)), lambda: _ask_every_server(address))


def check_client(client: Any) -> None:
    """The same for the application's own client."""
    if iscoroutinefunction(client.execute_command):
        raise ConfigError(
            "require_store must be used with the store's URL or a synchronous client (got an asynchronous client); "
            "write store: redis://HOST:PORT, or require_store: false"
        )
    _within("of the client", lambda: client.execute_command("TIME"))


def _ask_every_server(address: RedisAddress) -> None:
    with every_server(address) as servers:
        for server in servers:
            server.exchange(command("TIME"), Budget(CONNECT_SECONDS))


def _within(place: str, ask: Callable[[], object]) -> None:
    failures: list[Exception | None] = []

    def asking() -> None:
        try:
            ask()
        except Exception as error:
            failures.append(error)
        else:
            failures.append(None)

    if is_about_to_fork():
        asking()  # no thread may be there then
    else:
        thread = threading.Thread(target=asking, daemon=True, name="diana-store-start")
        thread.start()
        thread.join(START_SECONDS)
    failure = failures[0] if failures else Failure(f"no answer within {START_SECONDS:g} s")
    if failure is not None:
        raise StoreError(
            f"store {place} must be reachable at the start, because require_store is true (got: {failure})"
            f"{what_to_write(str(failure))}"
        )
