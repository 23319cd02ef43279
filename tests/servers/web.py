"""A web server that holds one document, and the bad days it has."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from types import TracebackType
from typing import Self

from tests.servers.ports import HOST, free_ports

PATH = "/rules.yaml"

Fault = Callable[["Visit"], None]


class Visit(BaseHTTPRequestHandler):
    """One request, and the answer to it."""

    web: WebServer

    def do_GET(self) -> None:
        self._count()
        web = self.web
        # Each is looked at once: a test may choose another in the middle of an answer.
        fault, document = web.fault, web.document
        etag = web.etag_of(document)
        if fault is not None:
            fault(self)
        elif document is None or self.path.partition("?")[0] != PATH:
            self.answer(404, b"nothing here")
        elif etag and self.headers["If-None-Match"] == etag:
            self.answer(304, b"", **web.headers)
        else:
            self.answer(200, document, **({"ETag": etag} if etag else {}), **web.headers)

    def do_PUT(self) -> None:
        self._count()
        web = self.web
        text = self.rfile.read(int(self.headers["Content-Length"]))
        wanted, nothing = self.headers["If-Match"], self.headers["If-None-Match"]
        if wanted not in (None, web.etag) or (nothing == "*" and web.document is not None):
            self.answer(412, b"")
        else:
            web.document = text
            self.answer(204, b"")

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status not in (204, 304):
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""

    def _count(self) -> None:
        self.web.visits.append((self.command, self.path, dict(self.headers)))


class _Listener(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever hangs up in the middle of an answer is no news."""


class WebServer:
    """Serves `document` at /rules.yaml, with an ETag; takes a PUT. `fault` answers instead, if there is one."""

    def __init__(self, document: bytes | None = None) -> None:
        self.document = document
        self.with_etag = True
        self.headers: dict[str, str] = {}
        self.fault: Fault | None = None
        self.released = Event()
        """Set when it stops: a fault that holds a visitor waits for it."""
        self.visits: list[tuple[str, str, dict[str, str]]] = []
        """Method, path and headers of every request."""
        self._visit = type("Visit", (Visit,), {"web": self})
        self.port = next(free_ports())
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}{PATH}"

    @property
    def etag(self) -> str:
        return self.etag_of(self.document)

    def etag_of(self, document: bytes | None) -> str:
        if not self.with_etag or document is None:
            return ""
        return f'"{sha256(document).hexdigest()[:8]}"'

    def start(self) -> None:
        self.released = Event()
        self._listener = _Listener((HOST, self.port), self._visit)
        self._thread = Thread(target=self._listener.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Nobody listens any more; start() does again, on the same port."""
        self.released.set()
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()
