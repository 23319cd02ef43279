"""Rules from etcd, version 3, by its JSON gateway.

    etcd://[user:password@]host:2379,host:2379/diana/rules
    etcds://host:2379/diana/rules?ca=ca.pem&cert=client.pem&key=client.key        (TLS)

The key is all that stands behind the hosts, with its slash. It is watched from the revision that is known, so every change comes, once and
in order. A stream that is silent may also be a server that is frozen, or cut off from the others; so after each second of silence the key's
revision is asked for, which costs etcd little and needs a quorum.
"""

from __future__ import annotations

import ssl
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from diana.core.contracts import Revision
from diana.core.errors import ConfigError, SourceError
from diana.rules.backends.http_client import DeadlineRequest, EtcdRefused, Payload
from diana.rules.backends.server_list import (
    BackendAddress,
    Endpoint,
    ServerLost,
    Servers,
    address_from_url,
)
from diana.rules.document.yaml_tree import LARGEST_BYTES

EXAMPLE = "etcd://host:2379/diana/rules"
TLS_OPTIONS = {"ca": "ca=/etc/ssl/ca.pem", "cert": "cert=client.pem", "key": "key=client.key"}
SILENCE_SECONDS = 1.0
PAUSE_SECONDS = 0.05
"""After each edition: a server that sends changes without end costs the node little processor time."""
PUBLISH_SECONDS = 5.0


class EtcdSource:
    def __init__(self, address: BackendAddress) -> None:
        self._address = address
        self._tls = _tls(address)
        self._servers = Servers(address.endpoints)
        self._token = ""

    @classmethod
    def from_url(cls, url: str) -> EtcdSource:
        return cls(_address(url))

    @staticmethod
    def check_url(url: str) -> None:
        _address(url)

    def load(self) -> Revision:
        return self._load(self._address.path)

    def watch(self, known: Revision) -> Iterator[Revision]:
        return self._servers.follow(known, self._changes_after, self.load)

    def close(self) -> None:
        self._servers.closed.set()

    def publish(self, text: bytes, seen: Revision | None) -> Revision:
        if len(text) > LARGEST_BYTES:
            raise SourceError(f"more than {LARGEST_BYTES:,} bytes; split the rules")
        path = self._address.path
        seen_revision = "0" if seen is None else seen.version
        puts = [_put(path, text)]
        if seen is not None:
            puts.append(_put(_previous(path), seen.text))
        same = {"target": "MOD", "result": "EQUAL", "mod_revision": seen_revision}
        payload = {"compare": [_key(path) | same], "success": puts}
        # The server that answers a read gets the change, and no other: sent twice, it might conflict with itself.
        self._servers.ask(lambda endpoint: self._revision(endpoint, path))
        endpoint = self._servers.current
        try:
            answer = self._ask(endpoint, "/v3/kv/txn", payload, PUBLISH_SECONDS)
            revision = _number(_part(answer, "header").get("revision"))
        except ServerLost as error:
            raise SourceError(
                f"{endpoint}: {error}; the rules may or may not be published; check before retrying"
            ) from None
        if not answer.get("succeeded"):
            raise SourceError(
                f"the key {path} has changed since it was read; run the command again"
            )
        return Revision(text, str(revision))

    def previous(self) -> Revision:
        return self._load(_previous(self._address.path))

    def _load(self, path: str) -> Revision:
        edition = self._servers.ask(lambda endpoint: self._edition(endpoint, path))
        if edition is None:
            raise SourceError(f"there is no key {path} in etcd")
        return edition

    def _edition(self, endpoint: Endpoint, path: str) -> Revision | None:
        found = self._range(endpoint, _key(path))
        return None if found is None else _edition_from_kv(found)

    def _changes_after(self, endpoint: Endpoint, known: Revision) -> Iterator[Revision]:
        # With an expired token etcd refuses; loading gets a new one, or an answer that is final.
        with suppress(EtcdRefused):
            yield from self._streamed(endpoint, known)

    def _streamed(self, endpoint: Endpoint, known: Revision) -> Iterator[Revision]:
        start = _key(self._address.path) | {"start_revision": str(int(known.version) + 1)}
        payload = {"create_request": start}
        with DeadlineRequest(endpoint, self._tls, "/v3/watch", payload, self._token) as stream:
            while not self._servers.closed.is_set():
                message = stream.next_message(SILENCE_SECONDS)
                if message is None:
                    if self._has_changed_in_silence(endpoint, known):
                        return
                    continue
                result = _part(message, "result")
                if result.get("canceled"):  # compacted, or not allowed (any more)
                    return
                for event in _parts(result, "events"):
                    if event.get("type") == "DELETE":
                        return
                    edition = _edition_from_kv(_part(event, "kv"))
                    if int(edition.version) <= int(known.version):
                        raise ServerLost("unexpected reply: a change that is not newer")
                    known = edition
                    yield known
                    if self._servers.closed.wait(PAUSE_SECONDS):
                        return

    def _has_changed_in_silence(self, endpoint: Endpoint, known: Revision) -> bool:
        """The stream is stuck, or all of etcd was restored from a copy. If the server is frozen, it does not even answer this."""
        if self._servers.closed.is_set():
            return False
        return self._revision(endpoint, self._address.path) != known.version

    def _revision(self, endpoint: Endpoint, path: str) -> str | None:
        found = self._range(endpoint, _key(path) | {"keys_only": True})
        return None if found is None else str(_number(found.get("mod_revision")))

    def _range(self, endpoint: Endpoint, payload: Payload) -> dict[str, Any] | None:
        answer = self._ask(endpoint, "/v3/kv/range", payload)
        return next(iter(_parts(answer, "kvs")), None)

    def _ask(
        self, endpoint: Endpoint, path: str, payload: Payload, seconds: float | None = None
    ) -> dict[str, Any]:
        if self._token:
            try:
                with DeadlineRequest(
                    endpoint, self._tls, path, payload, self._token, seconds
                ) as call:
                    return call.answer()
            except EtcdRefused:
                self._token = ""  # it has expired, maybe; with a new one, the answer is final
        if self._address.user:
            self._token = self._authenticated(endpoint)
        with DeadlineRequest(endpoint, self._tls, path, payload, self._token, seconds) as call:
            return call.answer()

    def _authenticated(self, endpoint: Endpoint) -> str:
        payload = {"name": self._address.user, "password": self._address.password}
        with DeadlineRequest(endpoint, self._tls, "/v3/auth/authenticate", payload) as call:
            token = call.answer().get("token")
        if not isinstance(token, str) or not (token.isascii() and token.isprintable()):
            raise ServerLost("unexpected reply: not etcd's JSON")
        return token


def _address(url: str) -> BackendAddress:
    secure = url.lower().startswith("etcds://")
    address = address_from_url(url, EXAMPLE, TLS_OPTIONS)
    if address.options and not secure:
        raise ConfigError("ca, cert and key need TLS; write etcds:// instead of etcd://")
    if ("cert" in address.options) != ("key" in address.options):
        raise ConfigError(
            "a certificate and its key belong together; write cert=client.pem&key=client.key"
        )
    if address.password and not address.user:
        raise ConfigError("a password without a user; write etcd://user:password@host:2379/…")
    return address


def _tls(address: BackendAddress) -> ssl.SSLContext | None:
    if address.scheme != "etcds":
        return None
    options = address.options
    try:
        context = ssl.create_default_context(cafile=options.get("ca"))
        if "cert" in options:
            context.load_cert_chain(options["cert"], options["key"])
    except OSError as error:  # an SSLError is one, too
        names = ", ".join(f"{name}={value}" for name, value in options.items())
        raise ConfigError(
            f"{names}: cannot be read: {error.strerror or error}; write PEM files"
        ) from None
    return context


def _previous(path: str) -> str:
    return f"{path}.previous"


def _put(path: str, text: bytes) -> Payload:
    return {"request_put": _key(path) | {"value": b64encode(text).decode()}}


def _key(path: str) -> Payload:
    return {"key": b64encode(path.encode()).decode()}


def _edition_from_kv(kv: dict[str, Any]) -> Revision:
    try:
        text = b64decode(kv.get("value", ""), validate=True)
    except (TypeError, ValueError):
        raise ServerLost("unexpected reply: not etcd's JSON") from None
    if len(text) > LARGEST_BYTES:
        raise SourceError(f"more than {LARGEST_BYTES:,} bytes; split the rules")
    return Revision(text, str(_number(kv.get("mod_revision"))))


def _number(value: object) -> int:
    """etcd's JSON spells 64-bit numbers as texts."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        return int(value)
    raise ServerLost("unexpected reply: not etcd's JSON")


def _part(answer: dict[str, Any], name: str) -> dict[str, Any]:
    part = answer.get(name)
    if not isinstance(part, dict):
        raise ServerLost("unexpected reply: not etcd's JSON")
    return part


def _parts(answer: dict[str, Any], name: str) -> list[dict[str, Any]]:
    parts = answer.get(name, [])
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise ServerLost("unexpected reply: not etcd's JSON")
    return parts
