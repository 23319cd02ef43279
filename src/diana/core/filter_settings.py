"""Filters: what may stand in the gateway's chain behind the limiter.

A filter is plain ASGI around ASGI, so the same object serves as middleware in any app. It answers a request itself, or calls the
app that it was wrapped around; what it does not know (`lifespan`, kinds of scopes to come) it passes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from hashlib import sha256
from typing import Any, NamedTuple

from diana.core.client_address import Proxies
from diana.core.errors import ConfigError
from diana.core.rule import FilePosition

Message = MutableMapping[str, Any]
App = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]
"""ASGI: `await app(scope, receive, send)`."""
Wrap = Callable[..., App]
"""`wrap(app)`; of a filter that takes the workers, `wrap(app, workers)`."""


class GatewayWorkers(NamedTuple):
    """The processes that serve one gateway, for a filter that remembers something for all of them."""

    processes: int = 1
    zone: str | None = None
    """The name of the shared memory in which they count; None: each process counts alone."""

    def name(self, purpose: str) -> str:
        """The name of another shared memory beside that one."""
        name = f"{self.zone}-{purpose}"
        if len(name) <= LONGEST_ZONE_NAME:
            return name
        return f"{sha256(name.encode()).hexdigest()[:32]}-{purpose}"


LONGEST_ZONE_NAME = 64
ALONE = GatewayWorkers()


class Filter(NamedTuple):
    """`- access: {deny: …}` in a list of filters is made by `access`, given `deny`."""

    make: Callable[..., Wrap]
    """`make(proxies, **options)`: check here what can be checked (ConfigError; its `path` is the option that is wrong).

    What it returns is called once, when the gateway starts: open there what must be open (secrets, files).
    """
    options: tuple[str, ...] = ()
    """Their names. Values are texts, whole numbers, true or false, and lists and mappings of them."""
    takes_workers: bool = False
    """What `make` returns is called with the gateway's GatewayWorkers, too."""


class FilterSettings(NamedTuple):
    """One filter of a rules file, ready to be wrapped around an app."""

    name: str
    options: Mapping[str, Any]
    wrap: Wrap
    position: FilePosition | None = None
    takes_workers: bool = False

    def around(self, app: App, workers: GatewayWorkers = ALONE) -> App:
        """The app behind this filter; an error that is found now has the filter's position."""
        try:
            return self.wrap(app, workers) if self.takes_workers else self.wrap(app)
        except ConfigError as error:
            if self.position is None or error.line is not None:
                raise
            raise self.position.mistake(error.message, error.path) from None


def made(
    name: str,
    kind: Filter,
    options: Mapping[str, Any],
    proxies: Proxies,
    position: FilePosition | None = None,
) -> FilterSettings:
    return FilterSettings(
        name, options, kind.make(proxies, **options), position, kind.takes_workers
    )
