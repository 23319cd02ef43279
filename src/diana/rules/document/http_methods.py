"""`methods:` of a url: which methods of HTTP its rules are for, and which words are probably none."""

from __future__ import annotations

import re
from difflib import get_close_matches

from diana.core.errors import ConfigError, shown
from diana.rules.document.readers import Field, items, placed, text
from diana.rules.document.yaml_tree import Node

_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}")

COMMON = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "QUERY")
REGISTERED = frozenset([
    "ACL", "BASELINE-CONTROL", "BIND", "CHECKIN", "CHECKOUT", "CONNECT", "COPY", "DELETE", "GET", "HEAD", "LABEL", "LINK", "LOCK",
    "MERGE", "MKACTIVITY", "MKCALENDAR", "MKCOL", "MKREDIRECTREF", "MKWORKSPACE", "MOVE", "OPTIONS", "ORDERPATCH", "PATCH", "POST",
    "PRI", "PROPFIND", "PROPPATCH", "PUT", "QUERY", "REBIND", "REPORT", "SEARCH", "TRACE", "UNBIND", "UNCHECKOUT", "UNLINK",
    "UNLOCK", "UPDATE", "UPDATEREDIRECTREF", "VERSION-CONTROL",
])  # fmt: skip
"""HTTP's and WebDAV's: the registry of IANA."""
IN_USE = frozenset(["M-SEARCH", "NOTIFY", "PURGE", "SOURCE", "SUBSCRIBE", "UNSUBSCRIBE"])
"""Not registered, but caches, media servers and UPnP have them, and HTTP parsers accept them."""
KNOWN = REGISTERED | IN_USE


def methods(node: Node, path: str) -> list[Field]:
    """Each with its position."""
    found: list[Field] = items(_method, "method")(node, path)
    seen: set[str] = set()
    for method in found:
        if method.value in seen:
            twice = ConfigError(f"{method.value} stands here twice; keep one")
            raise placed(twice, method.position, method.position.path)
        seen.add(method.value)
    return found


def why_unknown(method: str) -> str | None:
    """What is said of a method that nothing sends; None for those that are known."""
    if method in KNOWN:
        return None
    word = method[:40]
    near = get_close_matches(word, COMMON, 1) or get_close_matches(word, sorted(KNOWN), 1)
    hint = f"did you mean {near[0]}?" if near else "write one such as GET or POST"
    return f"{shown(method)} is no registered method of HTTP; {hint}"


def _method(node: Node, path: str) -> str:
    word = text(node, path).upper()
    if word in ("ANY", "ALL", "*"):
        raise ConfigError(f"{word} is no method; remove methods to limit them all")
    if word == "HEAD":
        raise ConfigError("HEAD counts as GET; write GET")
    if not _METHOD.fullmatch(word):
        raise ConfigError(
            f"{shown(word)} is no method; write one such as POST, or a list: [GET, POST]"
        )
    return word
