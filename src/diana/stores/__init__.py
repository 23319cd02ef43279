"""Where counters live: `open_store` opens a store by URL. Entry points: `diana.stores`.

memory/        counters of one process
zone/          counters of all processes of a machine, in shared memory
redis/         counters of a fleet, in Redis or Valkey
adapters       a synchronous store used from coroutines; charges of cancelled tasks; renewal of slots in any store
arrival_rates  how often each key is charged, here and in the fleet
zero           the store of a limiter with a limit of 0
c_kernels      loads the kernels in C, if they were built
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from diana.core.contracts import AsyncFleetStore, AsyncStore, Client, FleetStore, Store
from diana.core.errors import ConfigError
from diana.core.store_url import no_store_url
from diana.runtime.entry_points import plugin
from diana.stores.adapters import AsyncAdapter


def open_store(store: str | Store | Client, **settings: Any) -> Store:
    """A store by URL; the scheme names the entry point. Of the settings it is given those that its class names in `settings`."""
    if not isinstance(store, str):
        if callable(getattr(store, "execute_command", None)) and not isinstance(store, type):
            return _opened(plugin("stores", "redis"), "from_client", store, settings)
        if isinstance(store, type) or not callable(getattr(store, "bind", None)):
            raise ConfigError(
                f"{store!r} is no store; write a URL such as memory://, or give a store or a client of Redis"
            )
        return cast("Store", store)
    scheme, colon, _ = store.partition("://")
    if not colon:
        raise no_store_url("store", store)
    return _opened(plugin("stores", scheme), "from_url", store, settings)


def _opened(kind: Any, how: str, where: Any, settings: dict[str, Any]) -> Store:
    wanted = getattr(kind, "settings", ())
    given = {name: value for name, value in settings.items() if name in wanted and value}
    return cast("Store", getattr(kind, how)(where, **given))


def asynchronous(store: Store) -> AsyncStore:
    """A store for coroutines: its own asynchronous side, or itself, if it never makes anybody wait."""
    side: AsyncStore | None = getattr(store, "asynchronous", None)
    return AsyncAdapter(store) if side is None else side


def refund_of(store: Store, *, degraded: bool) -> Callable[..., None]:
    """What refunds a charge in this store. Charges that it decided without its server are unknown to the server."""
    return cast("FleetStore", store).refund_here if degraded else store.refund


def arefund_of(store: AsyncStore, *, degraded: bool) -> Callable[..., Awaitable[None]]:
    """The same for coroutines."""
    return cast("AsyncFleetStore", store).refund_here if degraded else store.refund
