"""What the gateway takes of uvicorn beyond its promises; see `foreign`."""

from __future__ import annotations

from diana.gateway.foreign import refuse, require

try:
    from uvicorn.protocols.http.flow_control import FlowControl
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
except ModuleNotFoundError as missing:
    if missing.name is None or not missing.name.startswith("uvicorn."):
        raise  # a package that is not installed
    refuse("uvicorn", missing.name)

__all__ = ["FlowControl", "HttpToolsProtocol", "RequestResponseCycle", "WebSocketsSansIOProtocol"]

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
