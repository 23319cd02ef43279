"""Parts of other packages that the gateway uses or overrides though their authors promise nothing of them.

A version that lacks one would fail at a client's first request, with an AttributeError. So they are looked for when the gateway is
imported, and what is missing is told with the versions that have it. The ranges are those of `pyproject.toml`; a test compares them.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from inspect import signature
from typing import NoReturn

from aiohttp import ClientSession, TCPConnector

__all__ = [
    "FlowControl",
    "HttpProcessingError",
    "HttpToolsProtocol",
    "RawResponseMessage",
    "RequestResponseCycle",
    "ResponseHandler",
    "WebSocketsSansIOProtocol",
]


RANGES = {"uvicorn": ">=0.53,<0.60", "aiohttp": ">=3.14,<4", "websockets": ">=16,<18"}


def require(package: str, part: type, *names: str) -> None:
    """ImportError unless the class has all of them, as members or as what its `__init__` sets."""
    made = {name for base in part.__mro__ for name in _set_by_init(base)}
    for name in names:
        if not hasattr(part, name) and name not in made:
            refuse(package, f"{part.__module__}.{part.__qualname__}.{name}")


def refuse(package: str, missing: str) -> NoReturn:
    try:
        found = version(package)
    except PackageNotFoundError:
        found = "unknown"
    raise ImportError(
        f"diana's gateway needs {package} {RANGES[package]}, and {package} {found} has no {missing}; "
        f"run pip install 'diana-limiter[gateway]'",
        name=package,
    )


def _set_by_init(part: type) -> tuple[str, ...]:
    code = getattr(part.__dict__.get("__init__"), "__code__", None)
    return code.co_names if code is not None else ()


try:
    from uvicorn.protocols.http.flow_control import FlowControl
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
except ModuleNotFoundError as missing:
    if missing.name is None or not missing.name.startswith("uvicorn."):
        raise  # a package that is not installed
    refuse("uvicorn", missing.name)


require(
    "uvicorn", FlowControl,
    "_transport", "drain", "pause_reading", "pause_writing", "read_paused", "resume_reading", "resume_writing", "write_paused",
)  # fmt: skip
require(
    "uvicorn", HttpToolsProtocol,
    "_should_upgrade", "_start_asgi_task", "_unset_keepalive_if_required", "connection_lost", "connection_made", "cycle",
    "data_received", "flow", "handle_websocket_upgrade", "headers", "loop", "on_body", "on_header", "on_headers_complete",
    "on_message_begin", "on_message_complete", "on_response_complete", "parser", "pause_writing", "pipeline", "resume_writing",
    "transport",
)  # fmt: skip
require(
    "uvicorn", RequestResponseCycle,
    "chunked_encoding", "disconnected", "expected_content_length", "message_event", "response_complete", "response_started", "scope",
    "send",
)  # fmt: skip
require(
    "uvicorn", WebSocketsSansIOProtocol,
    "conn", "connection_lost", "connection_made", "data_received", "frames", "handle_cont", "handle_ping", "keepalive_timeout", "loop",
    "queue", "read_paused", "receive", "send_receive_event_to_app", "transport", "writable",
)  # fmt: skip


try:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.http import HttpProcessingError, RawResponseMessage
except ImportError as missing:
    refuse("aiohttp", str(missing))


require(
    "aiohttp", ResponseHandler,
    "_loop", "_on_read_timeout", "connection_lost", "feed_data", "read_timeout", "set_exception", "transport",
)  # fmt: skip
require("aiohttp", TCPConnector, "_factory", "_loop")
if "max_headers" not in signature(ClientSession).parameters:
    refuse("aiohttp", "ClientSession(max_headers=…)")
