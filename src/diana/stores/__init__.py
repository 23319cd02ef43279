"""Who remembers?"""

from __future__ import annotations

from typing import cast

from diana.core.contracts import Store
from diana.core.errors import ConfigError
from diana.core.plugins import plugin


def open_store(store: str | Store) -> Store:
    """A store by URL; the scheme names the entry point."""
    if not isinstance(store, str):
        if isinstance(store, type) or not callable(getattr(store, "bind", None)):
            raise ConfigError(
                f"{store!r} is no store; write a URL such as memory://, or give a store"
            )
        return store
    scheme, colon, _ = store.partition("://")
    if not colon:
        raise ConfigError(f"{store!r} is no store; write a URL such as memory://")
    return cast("Store", plugin("stores", scheme).from_url(store))
