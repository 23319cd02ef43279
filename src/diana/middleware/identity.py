"""`account=` and `device=`: functions that say who is asking, because the app knows better than a header.

They are only called if a rule that covers the request counts by what they find. What they raise is the request's problem: it is
limited as its rules' `missing` says, counted and logged, and nothing else happens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import iscoroutine, iscoroutinefunction
from typing import Any
from uuid import UUID

from diana.core.errors import ConfigError
from diana.core.policy import Policy
from diana.core.request import Request

Finder = Callable[[Any], Any]
"""Gets the request; gives a str, an int or a UUID, None for nobody, or (where the app is async) something to await."""

KINDS = ("account", "device")
NEEDS_NOTHING = {"all", "ip", "host", "path", "header", "query", "cookie", "segment"}


class Finders:
    """The functions given, and which rules need them."""

    def __init__(self, account: Finder | None, device: Finder | None) -> None:
        given = {"account": account, "device": device}
        self._finders = {kind: finder for kind, finder in given.items() if finder is not None}
        for kind, finder in self._finders.items():
            if not callable(finder):
                raise ConfigError(f"{kind} is {finder!r}; give a function of the request")
        self._known: tuple[Policy | None, dict[int, frozenset[str]]] = (None, {})

    def __bool__(self) -> bool:
        return bool(self._finders)

    def needed(self, policy: Policy, request: Request) -> dict[str, Finder]:
        """Those to be called for this request."""
        known, needed_by = self._known
        if policy is not known:
            needed_by = {id(rule): kinds_in(rule.actor) for rule in policy.rules}
            self._known = policy, needed_by
        kinds: set[str] = set()
        for rule in policy.match(request):
            kinds |= needed_by[id(rule)]
        return {kind: finder for kind, finder in self._finders.items() if kind in kinds}

    def checked_sync(self) -> Finders:
        """Where nothing can be awaited, say so at once."""
        for kind, finder in self._finders.items():
            if is_async(finder):
                raise ConfigError(f"{kind} is a coroutine function; here, give a plain one")
        return self


def is_async(finder: Finder) -> bool:
    return iscoroutinefunction(finder) or iscoroutinefunction(type(finder).__call__)


def kinds_in(actor: str) -> frozenset[str]:
    """Which of them an actor's spelling looks at; one that is not ours may look at both."""
    words = {part.split(" ")[0] for part in actor.split(" + ")}
    if words - NEEDS_NOTHING - set(KINDS):
        return frozenset(KINDS)
    return frozenset(words & set(KINDS))


def found(finder: Finder, asked: Any) -> str | Exception | None:
    """Who is asking; or why that could not be found out."""
    try:
        value = finder(asked)
        if iscoroutine(value):
            value.close()
        return identity_from_value(value)
    except Exception as error:
        return error


async def afound(finder: Finder, asked: Any) -> str | Exception | None:
    """`found`, for functions that may have to be awaited."""
    try:
        value = finder(asked)
        return identity_from_value(await value if isinstance(value, Awaitable) else value)
    except Exception as error:
        return error


def identity_from_value(value: object) -> str | None:
    """`alice`, `17` or a UUID; nothing, `""` and False are nobody.

    Anything else is refused: the text of an object may hold its address in memory, another one for every request.
    """
    if value is None or value is False or value == "":
        return None
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int | UUID) and value is not True:
        return str(value)
    raise TypeError(f"an identity is a str, an int or a UUID, not {type(value).__name__}")
