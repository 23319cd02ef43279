"""A request of ASGI, as rules see it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from diana.core.request import Request, one_of
from diana.web.asgi_types import Scope


class ScopeRequest(Request):
    """What rules see of an ASGI scope; the scope itself is there as `scope`."""

    __slots__ = ("scope",)

    def __init__(self, scope: Scope) -> None:
        # Written out, not by way of Request's own: this is done for every request, and half of it is the call.
        raw: bytes | None = scope.get("raw_path")
        client = scope.get("client")
        self.scope = scope
        self.method = scope.get("method", "GET")
        # As the client sent it, whatever an app was mounted at: rules are written for what clients see.
        self.path = raw.decode("utf-8", "surrogateescape") if raw else _path_of_mounted(scope)
        self.headers: Any = scope["headers"]
        root = scope.get("root_path")
        self.mount = quote(root, errors="surrogateescape") if root else ""
        self.query = scope.get("query_string", b"").decode("latin-1")
        self.peer = client[0] if client else None
        self.identities = None
        self.identity_errors = None
        self.function_errors = None
        self.shadow_listed = None
        self._segments = None
        self._fields = None

    def header_lines(self, name: str) -> list[str]:
        wanted = name.encode("latin-1")
        return [value.decode("latin-1") for field, value in self.headers if field == wanted]

    def detach(self) -> None:
        self.scope = {}

    def header(self, name: str) -> str | None:
        # ASGI has the names in small letters, as bytes. Looking for one costs a tenth of reading them all.
        wanted = name.encode("latin-1")
        found: bytes | None = None
        for field, value in self.headers:
            if field == wanted:
                if found is not None:
                    return one_of(self.header_lines(name))
                found = value
        return None if found is None else found.decode("latin-1").strip() or None


def _path_of_mounted(scope: Scope) -> str:
    """From servers that keep no raw path; some of them take the mount's own path off."""
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    full = path if path == root or path.startswith(f"{root}/") else root + path
    return quote(full, errors="surrogateescape")
