"""Rules from ZooKeeper, with kazoo: `zookeeper://host:2181,host:2181/diana/rules[?auth=digest:user:password]`.

The node is all that follows the hosts. A data watch reports a change. The server of a silent session may be frozen; so after each second
of silence the node is checked. If a session does not reply within a second, it is dropped, the next server is tried, and the node is read
again. kazoo would repair a session by itself, but only within the session's timeout; a reader of rules loses nothing with its session.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Event, Thread
from typing import Any

from diana.core.contracts import Revision
from diana.core.errors import ConfigError, SourceError
from diana.rules.backends.server_list import (
    BackendAddress,
    Endpoint,
    ServerLost,
    Servers,
    address_from_url,
)
from diana.rules.document.yaml_tree import LARGEST_BYTES

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


EXAMPLE = "zookeeper://host:2181/diana/rules"
OPTIONS = {"auth": "auth=digest:user:password"}
SILENCE_SECONDS = 1.0
PUBLISH_SECONDS = 5.0
FIRST_SECONDS = 0.4
"""For a first session with one of several servers: a start waits a second, and a dead one must leave some of it to the next."""
LONGEST_PACKET = 0xFFFFF - 1024
"""What a server takes unless its jute.maxbuffer says otherwise, and what stands around the rules in it."""


class ZooKeeperSource:
    def __init__(self, address: BackendAddress) -> None:
        self._path = address.path
        self._servers = Servers(address.endpoints)
        first = FIRST_SECONDS if len(address.endpoints) > 1 else None
        self._session = Session(_auth(address), self._servers.closed, first)
        self._notified = Event()

    @classmethod
    def from_url(cls, url: str) -> ZooKeeperSource:
        cls.check_url(url)
        return cls(_address(url))

    @staticmethod
    def check_url(url: str) -> None:
        _auth(_address(url))
        try:
            import kazoo  # noqa: F401
        except ModuleNotFoundError:
            raise ConfigError(
                "kazoo is not installed; run pip install 'diana-limiter[zookeeper]'"
            ) from None

    def load(self) -> Revision:
        return self._load(self._path)

    def watch(self, known: Revision) -> Iterator[Revision]:
        return self._servers.follow(known, self._changes_after, self.load)

    def close(self) -> None:
        self._servers.closed.set()
        self._notified.set()
        self._session.end()

    def publish(self, text: bytes, seen: Revision | None) -> Revision:
        if len(text) > LARGEST_BYTES:
            raise SourceError(f"more than {LARGEST_BYTES:,} bytes; split the rules")
        # The server that answers a read gets the change, and no other: sent twice, it might conflict with itself.
        there = self._servers.ask(lambda endpoint: self._stat(endpoint, self._path))
        if (there and str(there.mzxid)) != (seen and seen.version):
            raise self._conflict()
        endpoint = self._servers.current
        try:
            if seen is None:
                return self._create(endpoint, text)
            return self._replace(endpoint, text, seen, there.version)
        except ServerLost as error:
            hint = "the rules may or may not be published; check before retrying"
            if len(text) + (0 if seen is None else len(seen.text)) > LONGEST_PACKET:
                hint = "ZooKeeper takes at most 1 MB (jute.maxbuffer), the previous rules included"
            raise SourceError(f"{endpoint}: {error}; {hint}") from None

    def previous(self) -> Revision:
        return self._load(_previous(self._path))

    def _create(self, endpoint: Endpoint, text: bytes) -> Revision:
        from kazoo.exceptions import NodeExistsError, NoNodeError

        parent = self._path.rpartition("/")[0]
        acl = self._session.acl

        def create(client: Any) -> Any:
            return client.create_async(self._path, text, acl=acl, include_data=True)

        try:
            if parent:
                self._session.ask(endpoint, lambda client: client.ensure_path_async(parent, acl))
            _, stat = self._session.ask(endpoint, create, PUBLISH_SECONDS)
        except (NodeExistsError, NoNodeError):
            raise self._conflict() from None
        return Revision(text, str(stat.mzxid))

    def _replace(self, endpoint: Endpoint, text: bytes, seen: Revision, version: int) -> Revision:
        # The version of a node starts again with a new node, the number of the transaction that changed it last (mzxid) does
        # not; so that tells editions apart. ZooKeeper compares versions only: a node that is deleted, made anew and changed
        # as often, all between our look and this, is not noticed.
        previous = _previous(self._path)
        has_previous = self._stat(endpoint, previous) is not None

        def replace(client: Any) -> Any:
            transaction = client.transaction()
            transaction.set_data(self._path, text, version)
            if has_previous:
                transaction.set_data(previous, seen.text)
            else:
                transaction.create(previous, seen.text, acl=self._session.acl)
            return transaction.commit_async()

        results = self._session.ask(endpoint, replace, PUBLISH_SECONDS)
        errors = [result for result in results if isinstance(result, Exception)]
        if errors:
            raise self._refusal(errors)
        return Revision(text, str(results[0].mzxid))

    def _refusal(self, errors: list[Exception]) -> SourceError:
        from kazoo.exceptions import BadVersionError, NoAuthError, NodeExistsError, NoNodeError

        # The operation that failed has an error of its own; those beside it are merely rolled back.
        if any(isinstance(one, BadVersionError | NodeExistsError | NoNodeError) for one in errors):
            return self._conflict()
        if any(isinstance(one, NoAuthError) for one in errors):
            return SourceError(NOT_ALLOWED)
        return SourceError(f"{self._path} cannot be written: {', '.join(map(error_text, errors))}")

    def _conflict(self) -> SourceError:
        return SourceError(f"{self._path} has changed since it was read; run the command again")

    def _load(self, path: str) -> Revision:
        edition = self._servers.ask(lambda endpoint: self._read(endpoint, path))
        if edition is None:
            raise SourceError(f"there is no node {path} in ZooKeeper")
        return edition

    def _changes_after(self, endpoint: Endpoint, known: Revision) -> Iterator[Revision]:
        while not self._servers.closed.is_set():
            self._notified.clear()
            stat = self._stat(endpoint, self._path, self._notify)
            if stat is not None and str(stat.mzxid) == known.version:
                self._notified.wait(SILENCE_SECONDS)
                continue
            edition = None if stat is None else self._read(endpoint, self._path)
            if edition is None:
                return
            known = edition
            yield known

    def _notify(self, _: object) -> None:
        """Of a change, or of a lost connection: a look shows which."""
        self._notified.set()

    def _read(self, endpoint: Endpoint, path: str) -> Revision | None:
        from kazoo.exceptions import NoNodeError

        # Another server may be behind the one asked before: without this, old rules could come back.
        self._session.ask(endpoint, lambda client: client.sync_async(path))
        stat = self._stat(endpoint, path)
        if stat is None:
            return None
        if stat.data_length > LARGEST_BYTES:
            raise SourceError(f"{path}: more than {LARGEST_BYTES:,} bytes; split the rules")
        try:
            text, stat = self._session.ask(endpoint, lambda client: client.get_async(path))
        except NoNodeError:
            return None
        return Revision(text, str(stat.mzxid))

    def _stat(
        self, endpoint: Endpoint, path: str, tell: Callable[[object], None] | None = None
    ) -> Any:
        return self._session.ask(endpoint, lambda client: client.exists_async(path, watch=tell))


def _address(url: str) -> BackendAddress:
    address = address_from_url(url, EXAMPLE, OPTIONS)
    if address.user or address.password:
        raise ConfigError(
            "ZooKeeper knows no user before the hosts; write ?auth=digest:user:password"
        )
    parts = address.path.split("/")[1:]
    if any(part in ("", ".", "..") for part in parts) or "\0" in address.path:
        raise ConfigError(f"this is no path of a node in ZooKeeper; write {EXAMPLE}")
    return address


def _auth(address: BackendAddress) -> list[tuple[str, str]]:
    if "auth" not in address.options:
        return []
    scheme, _, credentials = address.options["auth"].partition(":")
    if scheme != "digest" or ":" not in credentials.strip(":"):
        raise ConfigError(
            "these are no credentials for ZooKeeper; write ?auth=digest:user:password"
        )
    return [(scheme, credentials)]


def _previous(path: str) -> str:
    return f"{path}.previous"
