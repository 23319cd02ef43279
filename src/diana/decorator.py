"""`@limit`: calls of a function, method or coroutine, limited."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import _AsyncGeneratorContextManager, _GeneratorContextManager
from functools import wraps
from inspect import isasyncgen, isawaitable, iscoroutine, isgenerator, isgeneratorfunction
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

from diana.core.charge import checked_cost
from diana.core.contracts import Client, Store
from diana.core.errors import ConfigError, KeyTypeError, LimitExceeded, shown
from diana.engine.function_errors import FunctionErrors
from diana.limiter import AsyncLimiter, Limiter
from diana.slots.wait_queue import checked_seconds

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Kind_co = TypeVar("Kind_co", Limiter, AsyncLimiter, covariant=True)


_WITH_BODY = (_GeneratorContextManager, _AsyncGeneratorContextManager)
"""Of contextlib: the function's body runs in the `with`, after the call."""


class Limited(Protocol, Generic[P, R_co, Kind_co]):
    """What type checkers know of a decorated function: it is called, and bound as a method, as before. It has its limiter, and counts how
    often its `cost` failed."""

    @property
    def limiter(self) -> Kind_co: ...

    @property
    def function_errors(self) -> FunctionErrors: ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @overload
    def __get__(self, instance: None, owner: type, /) -> Self: ...

    @overload
    def __get__(
        self: Limited[Concatenate[Any, Q], R_co, Kind_co], instance: object, owner: type, /
    ) -> Callable[Q, R_co]: ...


class Decorator(Protocol):
    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine function is a function, too
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Limited[P, Coroutine[Any, Any, R], AsyncLimiter]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Limited[P, R, Limiter]: ...


def limit(
    spelling: str,
    *,
    key: str | Callable[..., str] = "",
    cost: int | Callable[..., int] = 1,
    timeout: float | None = None,
    fallback: Callable[..., Any] | None = None,
    store: str | Store | Client = "memory://",
    name: str | None = None,
    charge_on: type[BaseException] | Sequence[type[BaseException]] | None = None,
    **limiter_options: Any,
) -> Decorator:
    """Limit calls of a function, method or coroutine.

    Over the limit it calls `fallback` with the same arguments, or raises LimitExceeded. `key` and `cost` may be functions of the
    call's arguments; a call whose `cost` fails costs 1. With `timeout` it first waits that long. Of a limit such as `5 at once`, so many
    calls run at a time. With `charge_on`, only calls that raise one of these exceptions are charged; the others are refunded when they
    end. The counter is named after the function unless `name` is given. The decorated function has its limiter as `.limiter`, to reset or
    peek at a key.
    """
    if not isinstance(spelling, str):
        raise ConfigError('@limit needs a limit; write @limit("100/minute")')
    if timeout is not None:
        checked_seconds(timeout)
    if fallback is not None and not callable(fallback):
        raise ConfigError(f"fallback is {fallback!r}; give a function that returns it")
    key_of = _as_function(key, _checked_key)
    cost_of = _as_function(cost, checked_cost)
    charged = None if charge_on is None else _exceptions(charge_on)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if isinstance(function, staticmethod | classmethod):
            return cast("Callable[P, R]", type(function)(decorate(function.__func__)))
        named = name or _name_of(function)
        options = {"store": store, "name": named, **limiter_options}
        errors = FunctionErrors()
        price_of = _cost_or_one(cost, named, errors) if callable(cost) else cost_of
        made: Any
        if _is_coroutine_function(function):
            coroutine = cast("Callable[P, Awaitable[Any]]", function)
            made = _alimited(coroutine, AsyncLimiter(spelling, **options), price_of)
        else:
            made = _limited(function, Limiter(spelling, **options), price_of)
        made.function_errors = errors
        return cast("Callable[P, R]", made)

    def _limited(
        function: Callable[P, R], limiter: Limiter, cost_of: Callable[..., int]
    ) -> Callable[P, R]:
        places = limiter.uses_slots
        _check_charge_on(charged, limiter)
        if (places or charged) and (
            isgeneratorfunction(function) or isgeneratorfunction(type(function).__call__)
        ):
            raise _unfinished("a generator function", function)

        @wraps(function)
        def limited(*args: P.args, **kwargs: P.kwargs) -> R:
            who, price = key_of(*args, **kwargs), cost_of(*args, **kwargs)
            if timeout is None:
                decision = limiter.sleep_delay(limiter.take(who, price))
            else:
                decision = limiter.wait(who, price, timeout)
            if decision:
                if charged is not None:
                    try:
                        result = _finished(function(*args, **kwargs), function)
                    except charged:
                        raise
                    except Exception:
                        limiter.refund(decision)
                        raise
                    limiter.refund(decision)
                    return result
                if not places:
                    return function(*args, **kwargs)
                with limiter.keep_slots(decision):
                    return _finished(function(*args, **kwargs), function)
            if fallback is None:
                raise LimitExceeded(decision)
            return cast("R", fallback(*args, **kwargs))

        limited.limiter = limiter  # type: ignore[attr-defined]
        return limited

    def _alimited(
        function: Callable[P, Awaitable[Any]],
        limiter: AsyncLimiter,
        cost_of: Callable[..., int],
    ) -> Callable[P, Awaitable[Any]]:
        places = limiter.uses_slots
        _check_charge_on(charged, limiter)

        @wraps(function)
        async def limited(*args: P.args, **kwargs: P.kwargs) -> Any:
            who, price = key_of(*args, **kwargs), cost_of(*args, **kwargs)
            if timeout is None:
                decision = await limiter.sleep_delay(await limiter.take(who, price))
            else:
                decision = await limiter.wait(who, price, timeout)
            if decision:
                if charged is not None:
                    try:
                        result = _finished(await function(*args, **kwargs), function)
                    except charged:
                        raise
                    except Exception:  # a call that is cancelled stays charged
                        await limiter.refund(decision)
                        raise
                    await limiter.refund(decision)
                    return result
                if not places:
                    return await function(*args, **kwargs)
                with limiter.keep_slots(decision):
                    return _finished(await function(*args, **kwargs), function)
            if fallback is None:
                raise LimitExceeded(decision)
            answer = fallback(*args, **kwargs)
            return await answer if isinstance(answer, Awaitable) else answer

        limited.limiter = limiter  # type: ignore[attr-defined]
        return limited

    return cast("Decorator", decorate)


def _finished(result: R, function: Callable[..., Any]) -> R:
    """The result of a call that held a slot or is charged by how it ends; an error if its work has only begun."""
    if isawaitable(result):
        kind = "an awaitable"
    elif isgenerator(result) or isasyncgen(result):
        kind = "a generator"
    elif isinstance(result, _WITH_BODY):
        kind = "a context manager"
    else:
        return result
    if iscoroutine(result):
        result.close()  # it never runs, and should not warn of that
    raise _unfinished(kind, function)


def _unfinished(kind: str, function: Callable[..., Any]) -> ConfigError:
    name = getattr(function, "__qualname__", None) or repr(function)
    return ConfigError(
        f"@limit with 'N at once' or charge_on must decorate a function whose work is done when it returns (got {kind} from {name}); "
        "write async def, or remove @limit and write with limiter.slot(key): around the work"
    )


def _exceptions(charge_on: Any) -> tuple[type[BaseException], ...]:
    several = (charge_on,) if isinstance(charge_on, type) else charge_on
    if isinstance(several, tuple | list | set | frozenset) and several:
        for kind in several:
            if not isinstance(kind, type) or not issubclass(kind, BaseException):
                break
        else:
            return tuple(several)
    raise ConfigError(
        f"charge_on= of @limit must be exceptions, of which a call raises one to be charged (got {shown(charge_on)}); "
        "write charge_on=[PermissionError]; statuses are for routes: rate_limit(..., charge_on=[401]) of your framework"
    )


def _check_charge_on(charged: object, limiter: Limiter | AsyncLimiter) -> None:
    if charged is not None and limiter.uses_slots:
        raise ConfigError(
            "charge_on= of @limit is for limits that count calls, and 'N at once' counts how many run; remove charge_on="
        )


def _cost_or_one(cost: Callable[..., Any], name: str, errors: FunctionErrors) -> Callable[..., int]:
    """A call whose cost cannot be determined costs 1. An error here does not stop the call: a function may parse a client's words."""

    def cost_or_one(*args: Any, **kwargs: Any) -> int:
        try:
            return checked_cost(cost(*args, **kwargs))
        except Exception as error:
            errors.note_error(name, "cost", error)
            return 1

    return cost_or_one


def _as_function(value: Any, checked: Callable[[Any], Any]) -> Callable[..., Any]:
    """What may be a function of the call's arguments or the same for all calls; the latter is checked at once."""
    if callable(value):
        return cast("Callable[..., Any]", value)
    fixed = checked(value)
    return lambda *_, **__: fixed


def _checked_key(key: object) -> object:
    if not isinstance(key, str):
        raise KeyTypeError(key)
    return key


def _is_coroutine_function(function: Callable[..., Any]) -> bool:
    from inspect import isasyncgenfunction, iscoroutinefunction

    if isasyncgenfunction(function):
        raise ConfigError(
            "@limit does not know when an async generator is called; limit what calls it"
        )
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)


def _name_of(function: Callable[..., Any]) -> str:
    try:
        return f"{function.__module__}.{function.__qualname__}"
    except AttributeError:
        raise ConfigError(f"{function!r} has no name to count by; give the limit a name=") from None
