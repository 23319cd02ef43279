"""Where rules come from: a file, or a server by URL.

loading    from a file, bytes or a mapping to a `Policy`
document/  from bytes to a policy: YAML, fields, compiler, warnings; no I/O
backends/  where documents are: file, HTTP, Redis, etcd, ZooKeeper
watch/     live reload: the last good rules, a local copy, retries, problems

`document` imports no backend; of `document`, backends use `yaml_tree` only. A backend is found by the
scheme of its URL. Entry points: `diana.sources`.
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
