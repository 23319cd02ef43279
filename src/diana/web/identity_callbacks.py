"""Functions of the application: `account=`, `device=`, `tier=` find an identity; `limit=`, `allow=`, `cost=` adjust a route's limit.

The former are called only if a rule that covers the request counts by what they find. If one raises, the request is limited as its rules'
`missing` says, and the error is counted and logged.

The latter, plain or async, are called once per request with the framework's request, before the rule is evaluated. What they raise is
raised again where the rule reads the value: there it is counted and logged, and the request is decided without the function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from inspect import iscoroutine, iscoroutinefunction
from typing import Any, NamedTuple
from uuid import UUID

from diana.core.errors import ConfigError
from diana.core.policy import Policy
from diana.core.request import Request

ARGUMENTS = {kind: f"{kind}=" for kind in ("account", "device", "tier")}
"""How a middleware is given its functions."""
EXAMPLES = {
    "account": "header X-User",
    "device": "cookie device",
    "tier": "header X-Plan, trust_tier: true",
}

Finder = Callable[[Any], Any]
"""Gets the request; gives a str, an int or a UUID, None if unknown, or (where the app is async) something to await."""


class Finders:
    """The application's functions, and which of them a request needs."""

    def __init__(
        self, account: Finder | None, device: Finder | None, tier: Finder | None = None
    ) -> None:
        finders = {"account": account, "device": device, "tier": tier}
        self._finders = {kind: finder for kind, finder in finders.items() if finder is not None}
        for kind, finder in self._finders.items():
            if not callable(finder):
                raise ConfigError(f"{kind} is {finder!r}; give a function of the request")

    def __bool__(self) -> bool:
        return bool(self._finders)

    def needed(self, policy: Policy, request: Request) -> dict[str, Finder]:
        """Those to be called for this request."""
        kinds = policy.match(request).kinds
        kinds |= policy.shed_kinds
        return {kind: finder for kind, finder in self._finders.items() if kind in kinds}

    def require(self, arguments: Mapping[str, str], policy: Policy) -> None:
        """ConfigError if the rules leave to code what no function finds. `arguments`: how to pass each."""
        for kind in policy.settings.found_by_code:
            if kind not in self._finders:
                argument = arguments[kind]
                raise ConfigError(
                    f"{argument} must be a function of the request, because the rules say identity: {{{kind}: code}} (got none); "
                    f"give one, or write in the rules where it is found: identity: {{{kind}: {EXAMPLES[kind]}}}"
                )

    def require_sync(self) -> None:
        """Where nothing can be awaited, say so at once."""
        for kind, finder in self._finders.items():
            if is_async(finder):
                raise ConfigError(f"{kind} is a coroutine function; here, give a plain one")


def refuse_code(program: str, policy: Policy) -> None:
    """ConfigError for rules that leave an identity to code: this program runs none of the application's."""
    for kind in policy.settings.found_by_code:
        raise ConfigError(
            f"identity.{kind} must be found in the request, because {program} runs no code of the application (got code); "
            f"write identity: {{{kind}: {EXAMPLES[kind]}}}, or use a middleware with {kind}="
        )


def is_async(finder: Finder) -> bool:
    return iscoroutinefunction(finder) or iscoroutinefunction(type(finder).__call__)


def find(finder: Finder, asked: Any) -> str | Exception | None:
    """Who is asking; or why that could not be found out."""
    try:
        value = finder(asked)
        if iscoroutine(value):
            value.close()
        return identity_from_value(value)
    except Exception as error:
        return error


async def afind(finder: Finder, asked: Any) -> str | Exception | None:
    """`find`, for functions that may have to be awaited."""
    try:
        value = finder(asked)
        return identity_from_value(await value if isinstance(value, Awaitable) else value)
    except Exception as error:
        return error


def identity_from_value(value: object) -> str | None:
    """`alice`, `17` or a UUID; nothing, `""` and False are no identity.

    Anything else is refused: the text of an object may hold its address in memory, another one for every request.
    """
    if value is None or value is False or value == "":
        return None
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int | UUID) and value is not True:
        return str(value)
    raise TypeError(f"an identity is a str, an int or a UUID, not {type(value).__name__}")


Found = dict[str, Any]


class RequestFunctions:
    def __init__(self, **functions: Any) -> None:
        self._functions: dict[str, Callable[[Any], Any]] = {
            name: function for name, function in functions.items() if callable(function)
        }

    def __bool__(self) -> bool:
        return bool(self._functions)

    def policy(self, policy: Policy) -> Policy:
        """The same rules, which look up what was found for the request that is being judged."""

        def reader(name: str) -> Callable[[Request], Any] | None:
            return partial(_found, name) if name in self._functions else None

        readers = {name: reader(name) for name in ("limit", "allow", "cost")}
        for rule in policy.rules:
            policy = policy.with_functions(rule.name, **readers)
        return policy

    def find(self, asked: Any) -> Found:
        found: Found = {}
        for name, function in self._functions.items():
            try:
                found[name] = function(asked)
            except Exception as error:
                found[name] = _Failed(error)
                continue
            if isinstance(found[name], Awaitable):
                raise ConfigError(f"{name} is an async function; here it must be a plain one")
        return found

    async def afind(self, asked: Any) -> Found:
        found: Found = {}
        for name, function in self._functions.items():
            try:
                value = function(asked)
                found[name] = await value if isinstance(value, Awaitable) else value
            except Exception as error:
                found[name] = _Failed(error)
        return found


class _Failed(NamedTuple):
    error: Exception


def _found(name: str, request: Request) -> Any:
    value = request.found[name]
    if isinstance(value, _Failed):
        raise value.error
    return value
