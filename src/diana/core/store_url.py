"""What was meant by a store that is no URL: `localhost:6379`, `redis:/localhost`, `/run/redis.sock`."""

from __future__ import annotations

import re

from diana.core.errors import ConfigError, shown
from diana.runtime.entry_points import entries

_SERVER = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}(?:/[0-9]*)?")
_SCHEME = re.compile(r"([a-z][a-z0-9+]*):/{0,3}(.+)", re.IGNORECASE)


def no_store_url(field: str, text: str) -> ConfigError:
    """The error about a text without `://`. It may be a URL with a password and a slip of the pen: then it is not shown."""
    if "@" in text:
        return ConfigError(
            f"{field} must be a URL with a scheme; write redis://USER:PASSWORD@HOST:6379"
        )
    return ConfigError(
        f"{field} must be a URL with a scheme (got {shown(text)}); write {_meant(text)}"
    )


def _meant(text: str) -> str:
    word = text.lower().rstrip(":/")
    if word in ("memory", "shared"):
        return f"{word}://" if word == "memory" else f"{word}://NAME"
    scheme = _SCHEME.fullmatch(text)
    if scheme is not None and scheme[1].lower() in entries("stores"):
        return f"{scheme[1].lower()}://{scheme[2]}"
    if _SERVER.fullmatch(text):
        return f"redis://{text}"
    if text.startswith("/"):
        return f"unix://{text}"
    return "one such as redis://localhost:6379 or memory://"
