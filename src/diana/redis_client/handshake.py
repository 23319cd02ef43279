"""Opening a connection: resolve, connect, TLS, log in. Only background threads do this; no request ever waits for it."""

from __future__ import annotations

import encodings.idna  # noqa: F401  # the first lookup of a host imports it, and no background thread may: see diana.runtime.fork
import os
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any
from weakref import WeakSet

from hiredis import ReplyError

from diana.redis_client.connection import Connection
from diana.redis_client.redis_url import Endpoint
from diana.redis_client.reply_errors import (
    BudgetExceeded,
    Failure,
    UnknownOutcome,
    Unreachable,
)
from diana.redis_client.time_budget import Budget
from diana.runtime.fork import fork_safe_lock
from diana.stores.redis.protocol.commands import command

CONNECT_SECONDS = 1.0
NO_TLS = "if this port speaks no TLS, write redis:// instead of rediss://"
NEEDS_TLS = "if this port speaks TLS, write rediss:// instead of redis://"


class NoHandshake(TimeoutError):
    """A server accepted the connection and said nothing to a TLS handshake: so does a Redis that speaks no TLS on this port."""


def patience(budget: float) -> float:
    """How many seconds a background thread waits for a server: as long as a request would, at least."""
    return max(CONNECT_SECONDS, budget)


def open_connection(
    endpoint: Endpoint,
    login: Mapping[str, Any],
    hear: Callable[[float], None] = lambda _: None,
    seconds: float | None = None,
    login_seconds: float | None = None,
) -> Connection:
    """A connection behind which a server is ready for commands; `hear` is called with the time whenever it says something.

    Logging in is one trip, whose reply may be lost like any other: it need not take as long as connecting.
    """
    connection = None
    seconds = CONNECT_SECONDS if seconds is None else seconds
    login_seconds = seconds if login_seconds is None else min(seconds, login_seconds)
    try:
        connection = Connection(_connected(endpoint, login, seconds), hear)
        _log_in(connection, login, Budget(login_seconds))
    except (Failure, OSError, ValueError) as error:  # ValueError: files of TLS that cannot be read
        if connection is not None:
            connection.close()
        may_need_tls = endpoint.port != 0 and not login.get("tls")
        raise Unreachable(
            _reason(error, may_need_tls), isinstance(error, UnknownOutcome | TimeoutError)
        ) from None
    except BaseException:
        if connection is not None:
            connection.close()
        raise
    return connection


def _connected(endpoint: Endpoint, login: Mapping[str, Any], seconds: float) -> socket.socket:
    if endpoint.port == 0:
        return _connect(socket.AF_UNIX, endpoint.host, seconds)
    reason: Exception = OSError(f"no address of {endpoint.host} is known")
    found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    for family, _, _, _, address in found:
        try:
            plain = _connect(family, address, seconds)
        except OSError as error:
            reason = error
        else:
            return _secured(plain, endpoint, login)
    raise reason


opening: WeakSet[socket.socket] = WeakSet()
"""Sockets that a background thread is about to make a connection of: a child that is forked meanwhile closes its copies."""

_making = threading.RLock()
"""Held from the making of a socket until it is in `opening`, and by whoever forks: no child has one that it does not know of.

May be taken again, for a signal's handler that forks just there.
"""


def _after_fork_in_parent() -> None:
    with suppress(RuntimeError):  # forked in C, which may have told of one half only
        _making.release()


def _after_fork_in_child() -> None:
    global _making
    _making = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _making.acquire(),
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )


def _connect(family: int, address: Any, seconds: float) -> socket.socket:
    with _making:
        plain = socket.socket(family, socket.SOCK_STREAM)
        opening.add(plain)
    try:
        plain.settimeout(seconds)
        plain.connect(address)
    except BaseException:
        plain.close()
        raise
    return plain


def _secured(plain: socket.socket, endpoint: Endpoint, login: Mapping[str, Any]) -> socket.socket:
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if not login.get("tls"):
            return plain
        files = tuple(login.get(name) for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"))
        verify = login.get("ssl_cert_reqs", "required"), login.get("ssl_check_hostname", True)
        with _building:
            context = _tls_context(*files, *verify, ssl.SSLContext)
        with _making:
            secure = context.wrap_socket(
                plain, server_hostname=endpoint.host, do_handshake_on_connect=False
            )
            opening.add(secure)
    except BaseException:
        plain.close()
        raise
    try:
        secure.do_handshake()
    except TimeoutError as error:
        secure.close()
        raise NoHandshake from error
    except BaseException:
        secure.close()
        raise
    return secure


_building = fork_safe_lock()


@lru_cache(maxsize=16)
def _tls_context(
    ca_certs: str | None,
    certificate: str | None,
    key: str | None,
    verify: str,
    check_hostname: bool,
    kind: type[ssl.SSLContext],
) -> ssl.SSLContext:
    """Once for all connections: reading the certificates costs more than the handshake. `kind` is another one after gevent's patching."""
    context = kind(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = check_hostname and verify != "none"
    context.verify_mode = ssl.VerifyMode[f"CERT_{verify.upper()}"]
    if ca_certs is not None:
        context.load_verify_locations(ca_certs)
    elif verify != "none":
        context.load_default_certs()
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


def _log_in(connection: Connection, login: Mapping[str, Any], budget: Budget) -> None:
    """All commands at once: one trip."""
    exchanges = []
    user, password = login.get("username"), login.get("password")
    if user is not None:
        exchanges.append(command("AUTH", user, password or ""))
    elif password is not None:
        exchanges.append(command("AUTH", password))
    if login.get("db"):
        exchanges.append(command("SELECT", login["db"]))
    exchanges.append(command("CLIENT", "SETNAME", login.get("client_name", "diana")))
    for answer in connection.finish(exchanges, connection.begin(exchanges, budget), budget):
        if isinstance(answer, Failure):
            raise answer


def _reason(error: Exception, may_need_tls: bool) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, NoHandshake):
        return f"TLS failed: the server did not reply to the handshake in time; {NO_TLS}"
    if isinstance(error, ssl.SSLError):
        hint = f"; {NO_TLS}" if error.reason == "WRONG_VERSION_NUMBER" else ""
        return f"TLS failed: {error.strerror or error}{hint}"
    if isinstance(error, TimeoutError):
        return "no connection in time"
    if may_need_tls and isinstance(error, UnknownOutcome) and not isinstance(error, BudgetExceeded):
        return f"{error}; {NEEDS_TLS}"
    if isinstance(error, ReplyError | Failure):
        return str(error)
    return f"{error.strerror or error}" if isinstance(error, OSError) else str(error)
