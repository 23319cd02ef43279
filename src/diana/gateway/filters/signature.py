"""Only requests that were signed with a shared secret, once, and just now: `signature`.

    filters:
      - signature:
          keys: {mobile: env MOBILE_KEY, partner: file /run/secrets/partner}
          window: 5m

A client sends three lines, and a fourth if there is a body:

    X-Signature-Key: mobile                     which secret
    X-Signature-Time: 1700000000.250000         seconds since 1970, with up to six decimals
    Content-Digest: sha-256=:<base64>:          of the body (RFC 9530)
    X-Signature: <64 hexadecimal digits>        HMAC-SHA256 of the four lines below, joined by \\n

    POST
    /orders?sku_id=7                            path and query as they are sent
    1700000000.250000
    sha-256=:<base64>:                          as it is sent; empty without a body, and without the line

The time must be within `window` of ours, before or after; no signature passes twice, whichever worker gets it. The
body is hashed while it passes, and its last byte is held back until the digest is right, so that the upstream never gets a whole body
that was not signed.
"""

from __future__ import annotations

import hmac
import os
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from time import time_ns
from typing import Any

from diana.core.client_address import Proxies
from diana.core.duration import micros_from_spelling
from diana.core.errors import ConfigError, shown
from diana.core.filter_settings import Filter, GatewayWorkers, Wrap
from diana.gateway.error_response import ErrorResponse, answer, problem
from diana.gateway.filters.used_signatures import ProcessReplays, Replay, ReplayMemory, ZoneReplays
from diana.gateway.forwarding_headers import TELLS_LENGTH
from diana.web.asgi_types import App, Message, Receive, Scope, Send

KEY, TIME, SIGNATURE, DIGEST = (
    b"x-signature-key",
    b"x-signature-time",
    b"x-signature",
    b"content-digest",
)
SHORTEST_SECRET = 16

_MOMENT = re.compile(rb"([0-9]{1,12})(?:\.([0-9]{1,6}))?")
_CHALLENGE = (b"www-authenticate", b"Diana-HMAC-SHA256")

UNSIGNED = problem(401, "This request is not signed, or not as it should be.", _CHALLENGE)
STALE = problem(401, "This request was signed too long ago, or for later.", _CHALLENGE)
REPLAYED = problem(401, "This request was here before.", _CHALLENGE)
OTHER_BODY = problem(400, "The body is not the one whose digest was signed.")
FULL = problem(503, "Too many signed requests; please try again later.", (b"retry-after", b"60"))
PROBLEMS = {Replay.REPEATED: REPLAYED, Replay.NO_ROOM: FULL}


def digest_of(hashed: bytes) -> bytes:
    """As `Content-Digest` spells it."""
    return b"sha-256=:" + b64encode(hashed) + b":"


EMPTY = digest_of(sha256().digest())


class Signature:
    """An app that only signed requests reach."""

    def __init__(
        self,
        app: App,
        secrets: Mapping[bytes, bytes],
        window_us: int = 300_000_000,
        *,
        clock: Callable[[], int] | None = None,
        replays: ReplayMemory | None = None,
    ) -> None:
        """`replays`: where used signatures are remembered; without it, in this process alone."""
        self.app = app
        self._secrets = dict(secrets)
        self._nobody = os.urandom(32)
        self._window_us = window_us
        self._clock = clock or _now_us
        self._replays = ProcessReplays() if replays is None else replays

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        digest, refusal = self._judged(scope)
        if refusal is not None:
            return await answer(refusal, scope, receive, send)
        if not digest:
            return await self.app(scope, receive, send)
        body = _SignedBody(digest, receive)
        began = False

        def noticing(message: Message) -> Any:
            nonlocal began
            began = True
            return send(message)

        await self.app(scope, body.receive, noticing)
        if body.wrong and not began:
            await answer(OTHER_BODY, scope, receive, send)
        return None

    def _judged(self, scope: Scope) -> tuple[bytes, ErrorResponse | None]:
        said: dict[bytes, bytes] = {}
        body = False
        # From HTTP/2 on, a body needs no line that announces it: whatever comes is digested, and unsigned it must be nothing.
        unannounced = scope["type"] == "http" and scope["http_version"] not in TELLS_LENGTH
        for name, value in scope["headers"]:
            if name in (KEY, TIME, SIGNATURE, DIGEST):
                if name in said:
                    return b"", UNSIGNED
                said[name] = value
            elif name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0")):
                body = True
        digest = said.get(DIGEST, b"")
        moment = _MOMENT.fullmatch(said.get(TIME, b""))
        if moment is None or KEY not in said or SIGNATURE not in said or (body and not digest):
            return b"", UNSIGNED
        query: bytes = scope["query_string"]
        target = scope["raw_path"] + b"?" + query if query else scope["raw_path"]
        method = scope.get("method", "GET").encode()
        signed = b"\n".join([method, target, said[TIME], digest])
        # An unknown key costs the same time as a wrong signature.
        secret = self._secrets.get(said[KEY], self._nobody)
        expected = hmac.digest(secret, signed, "sha256")
        if not hmac.compare_digest(expected.hex().encode(), said[SIGNATURE].lower()):
            return b"", UNSIGNED
        at_us = int(moment[1]) * 1_000_000 + int((moment[2] or b"").ljust(6, b"0"))
        now_us = self._clock()
        if abs(now_us - at_us) > self._window_us:
            return b"", STALE
        if unannounced:
            digest = digest or EMPTY
        elif digest and not body and digest != EMPTY:
            # The body was left out on the way; the signature may still come with it.
            return b"", OTHER_BODY
        # Only valid signatures are remembered, so a client without a secret cannot fill the memory.
        return digest, PROBLEMS.get(self._replays.add(expected, at_us + self._window_us, now_us))


class _SignedBody:
    """A body whose last byte is held back until all of it is known to be the signed one."""

    def __init__(self, digest: bytes, receive: Receive) -> None:
        self._digest = digest
        self._receive = receive
        self._hash = sha256()
        self._held = b""
        self.wrong = False

    async def receive(self) -> Message:
        if self.wrong:
            return {"type": "http.disconnect"}
        message = await self._receive()
        if message["type"] != "http.request":
            return message
        body: bytes = message.get("body", b"")
        self._hash.update(body)
        whole = self._held + body
        if message.get("more_body"):
            self._held = whole[-1:]
            return {"type": "http.request", "body": whole[:-1], "more_body": True}
        if not hmac.compare_digest(digest_of(self._hash.digest()), self._digest):
            self.wrong = True
            return {"type": "http.disconnect"}
        self._held = b""
        return {"type": "http.request", "body": whole, "more_body": False}


def _now_us() -> int:
    """The clients' clocks are set by the same time servers as ours, so this one may be set too."""
    return time_ns() // 1_000


def signature_lines(
    key: str, secret: bytes, method: str, target: str, at_us: int, body: bytes = b""
) -> dict[str, str]:
    """The header lines of a signed request, for clients in Python; `target` is path and query as they are sent."""
    moment = f"{at_us // 1_000_000}.{at_us % 1_000_000:06d}"
    digest = digest_of(sha256(body).digest()).decode() if body else ""
    signed = "\n".join([method, target, moment, digest]).encode()
    lines = {
        "X-Signature-Key": key,
        "X-Signature-Time": moment,
        "X-Signature": hmac.digest(secret, signed, "sha256").hex(),
    }
    return {**lines, "Content-Digest": digest} if digest else lines


def _signature(_: Proxies, *, keys: Any = None, window: Any = "5m") -> Wrap:
    if not isinstance(keys, dict) or not keys:
        raise ConfigError(
            "there are no keys; write keys: and under it names, such as mobile: env MOBILE_KEY",
            path="keys",
        )
    for name, where in keys.items():
        words = where.split(None, 1) if isinstance(where, str) else []
        if len(words) != 2 or words[0] not in ("env", "file"):
            # Never what stands there: it may be the secret itself.
            raise ConfigError(
                f"the key {shown(name)} says not where its secret is; write env NAME or file PATH",
                path="keys",
            )
    try:
        window_us = micros_from_spelling(str(window))
    except ConfigError as error:
        raise ConfigError(error.message, path="window") from None

    def wrap(app: App, workers: GatewayWorkers) -> App:
        secrets = {name.encode(): _secret(name, where) for name, where in keys.items()}
        return Signature(app, secrets, window_us, replays=_replays(workers))

    return wrap


def _replays(workers: GatewayWorkers) -> ReplayMemory:
    if workers.zone is not None:
        return ZoneReplays(workers.name("signatures"))
    if workers.processes > 1:
        raise ConfigError(
            "with several workers local_store must be shared://NAME, or each worker lets a signature pass once "
            "(got memory://); remove local_store, or start one worker"
        )
    return ProcessReplays()


def _secret(name: str, where: str) -> bytes:
    kind, place = where.split(None, 1)
    if kind == "env":
        secret = os.environ.get(place, "").encode()
        if not secret:
            raise ConfigError(f"{place} is not set in the environment; set it", path="keys")
    else:
        try:
            secret = Path(place).read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"{place} cannot be read: {error.strerror}", path="keys") from None
    if len(secret) < SHORTEST_SECRET:
        raise ConfigError(
            f"the secret of {shown(name)} is shorter than {SHORTEST_SECRET} bytes; make a longer one",
            path="keys",
        )
    return secret


signature = Filter(_signature, options=("keys", "window"), takes_workers=True)
