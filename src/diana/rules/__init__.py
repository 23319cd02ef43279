"""Where do rules come from? From a file, or from a config centre, by URL.

    document/    bytes to policy: YAML, schema, compiler; every mistake with its place, and warnings. No I/O
    places/      where the bytes are: file, HTTP, Redis, etcd, ZooKeeper. Nothing of what they mean
    rules.py     the front door: a file or bytes to a Policy
    following/   the same again on every change: last good rules, local copy, back-off, problems

Imports point downwards, and only downwards. A place is found by the scheme of its URL: an entry point in `diana.sources`.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from diana.core.contracts import Source
from diana.core.errors import ConfigError
from diana.runtime.entry_points import entries, plugin


def open_source(where: str | Path) -> Source:
    """A source by URL; the scheme names the entry point. Without a scheme it is a path."""
    scheme, colon, _ = str(where).partition("://")
    if not colon:
        return cast("Source", plugin("sources", "file").from_url(str(where)))
    return cast("Source", plugin("sources", scheme.lower()).from_url(str(where)))


def check_source(url: str) -> None:
    """Whether a URL can be one of a source; ConfigError says what to write instead. No server is asked."""
    scheme, colon, _ = url.lower().partition("://")
    known = ", ".join(f"{name}://" for name in sorted(entries("sources")))
    if not colon or scheme not in entries("sources"):
        # Never the URL itself: it may hold a password.
        raise ConfigError(
            f"this is no URL of a source of rules; write one that starts with one of {known}"
        )
    check_url = getattr(plugin("sources", scheme), "check_url", None)
    if check_url is not None:
        check_url(url)


def is_url(where: str | Path) -> bool:
    return "://" in str(where)
