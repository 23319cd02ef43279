"""What the gateway takes of aiohttp beyond its promises; see `foreign`."""

from __future__ import annotations

from inspect import signature

from aiohttp import ClientSession, TCPConnector

from diana.gateway.foreign import refuse, require

try:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.http import HttpProcessingError, RawResponseMessage
except ImportError as missing:
    refuse("aiohttp", str(missing))

__all__ = ["HttpProcessingError", "RawResponseMessage", "ResponseHandler"]

require(
    "aiohttp", ResponseHandler,
    "_loop", "_on_read_timeout", "connection_lost", "feed_data", "read_timeout", "set_exception", "transport",
)  # fmt: skip
require("aiohttp", TCPConnector, "_factory", "_loop")
if "max_headers" not in signature(ClientSession).parameters:
    refuse("aiohttp", "ClientSession(max_headers=…)")
