"""Limiters by their numbers: other libraries are told the numbers with every call, and ours is made of them once."""

from __future__ import annotations

from fractions import Fraction
from functools import cache, lru_cache
from typing import Any, TypeVar

from diana.core.contracts import Client, Clock, Store
from diana.core.errors import ConfigError
from diana.limiter import AsyncLimiter, Limiter
from diana.stores import open_store

MOST = 1_024
"""Combinations of numbers that are kept ready."""

AnyStore = str | Store | Client

T = TypeVar("T", Limiter, AsyncLimiter)


def limiter_on(
    store: AnyStore,
    name: str,
    spelling: str,
    algo: str = "TB",
    clock: Clock | None = None,
    **options: Any,
) -> Limiter:
    """The same one for the same numbers on the same store."""
    known: Any = store
    limiter: Limiter = _limiter(Limiter, known, name, spelling, algo, clock, tuple(options.items()))
    return limiter


def async_limiter_on(
    store: AnyStore,
    name: str,
    spelling: str,
    algo: str = "TB",
    clock: Clock | None = None,
    **options: Any,
) -> AsyncLimiter:
    known: Any = store
    limiter: AsyncLimiter = _limiter(
        AsyncLimiter, known, name, spelling, algo, clock, tuple(options.items())
    )
    return limiter


@lru_cache(MOST)
def _limiter(
    kind: type[T],
    store: Any,
    name: str,
    spelling: str,
    algo: str,
    clock: Clock | None,
    options: tuple[tuple[str, Any], ...],
) -> T:
    return kind(
        spelling,
        algo=algo,
        store=_opened(store),
        name=name,
        clock=clock,
        **dict(options),
    )


@cache
def _opened(store: Any) -> Store:
    """Once in the life of the process, however often it is named."""
    return open_store(store)


def whole(name: str, value: int, smallest: int = 1) -> int:
    if value.__class__ is not int or value < smallest:
        raise ConfigError(f"{name} is {value!r}; write a whole number from {smallest}")
    return value


def spelling_from_rate(name: str, per_second: float) -> str:
    """`43200/day` of 0.5 per second: limits are whole numbers. Always by the day, so that another rate goes on in the same counter."""
    try:
        by_day = round(Fraction(str(per_second)) * 86_400)
    except (ValueError, ZeroDivisionError):
        by_day = 0
    if by_day < 1:
        raise ConfigError(
            f"{name} is {per_second!r}; write how many per second, at least one a day (1 / 86400)"
        )
    return f"{by_day}/day"
