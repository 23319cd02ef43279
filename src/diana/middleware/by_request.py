"""`limit=`, `allow=` and `cost=` of a route's limit as functions of the request, plain or async.

They are called once per request, before the rule is asked, with what the framework calls a request. What they raise is raised again where
the rule looks for the value: there it is counted and logged, and the request is decided without the function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from diana.core.errors import ConfigError
from diana.core.policy import Policy
from diana.core.request import Request

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
