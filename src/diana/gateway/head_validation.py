"""Which heads of requests are refused before anybody judges them: those that two servers could read as two different requests."""

from __future__ import annotations

from http import HTTPStatus

from diana.gateway.error_response import ErrorResponse, problem

LARGEST_HEAD = 131_072
"""Bytes of a request's head; uvicorn's parser alone would read on as long as a client sends."""
LARGEST_OF_A_HANDSHAKE = 8_000
"""Bytes of a target or a header line; the parser of handshakes gives up a little later, and tells nobody."""
MOST_OF_A_HANDSHAKE = 120
"""Header lines; the same."""

Headers = list[tuple[bytes, bytes]]

NO_HTTP = problem(400, "This is no HTTP that can be read.")
TOO_LARGE = problem(431, "The head, or what stands around the body, is too large.")
FULL = problem(503, "Too many connections; please try again later.", (b"retry-after", b"1"))
FRAGMENT = problem(400, "What follows a # is for the client alone; no request may hold it.")
NO_HOST = problem(400, "A request names one host.")
NO_PATH = problem(400, "This gateway takes requests for a path only.")
CLIMBS = problem(400, "The path leads above where it starts; write it without dot segments.")
HANDSHAKE_WITH_BODY = problem(400, "The handshake of a WebSocket has no body.")
LARGE_HANDSHAKE = problem(431, "The head of this handshake is too large.")


def refusal_of_head(version: str, target: bytes, headers: Headers) -> ErrorResponse | None:
    """None if it may go on."""
    if b"#" in target:
        return FRAGMENT
    hosts = [name for name, _ in headers].count(b"host")
    if hosts > 1 or (hosts == 0 and version != "1.0"):
        return NO_HOST
    return None


def refusal_of_handshake(target: bytes, headers: Headers) -> ErrorResponse | None:
    if target[:1] != b"/":
        return NO_PATH
    if _has_body(headers):
        return HANDSHAKE_WITH_BODY
    longest = max((len(name) + len(value) for name, value in headers), default=0)
    if max(len(target), longest) > LARGEST_OF_A_HANDSHAKE or len(headers) > MOST_OF_A_HANDSHAKE:
        return LARGE_HANDSHAKE
    return None


def final_response(said: ErrorResponse) -> bytes:
    """A whole answer as it goes over the wire, behind which the connection is closed."""
    lines = [f"HTTP/1.1 {said.status} {HTTPStatus(said.status).phrase}".encode()]
    lines += [name + b": " + value for name, value in (*said.headers, (b"connection", b"close"))]
    return b"\r\n".join([*lines, b"", said.body])


def _has_body(headers: Headers) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        for name, value in headers
    )
