"""Who may come at all, by address or by header: `access`.

    filters:
      - access:
          allow: [10.0.0.0/8, header X-Staff]
          deny:
            - 10.66.0.0/16
            - header User-Agent: BadBot/1.0

Who is denied is denied. If there is an `allow`, everybody else is denied too. The answer is a 403.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from diana.core.client_address import LONGEST, Proxies, ip_from_text, network_from_spelling
from diana.core.errors import ConfigError, shown
from diana.core.filter_settings import Filter, Wrap
from diana.core.request import checked_token
from diana.gateway.error_response import answer, problem
from diana.web.asgi_types import App, Receive, Scope, Send

FORBIDDEN = problem(403, "Access is not allowed from here.")

IpAddress = IPv4Address | IPv6Address
Condition = Callable[[IpAddress | None, Scope], bool]


class Access:
    """An app that only some may reach."""

    def __init__(
        self,
        app: App,
        proxies: Proxies,
        allow: tuple[Condition, ...] | None,
        deny: tuple[Condition, ...],
    ) -> None:
        self.app = app
        self._proxies = proxies
        self._allow = allow
        self._deny = deny

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and not self._may(scope):
            return await answer(FORBIDDEN, scope, receive, send)
        return await self.app(scope, receive, send)

    def _may(self, scope: Scope) -> bool:
        address = self._address(scope)
        if any(denies(address, scope) for denies in self._deny):
            return False
        return self._allow is None or any(allows(address, scope) for allows in self._allow)

    def _address(self, scope: Scope) -> IpAddress | None:
        client = scope.get("client")
        if not client:
            return None
        hop: str | None = client[0]
        if self._proxies.trusts(hop):
            forwarded = [value.decode("latin-1") for value in _values(scope, b"x-forwarded-for")]
            hop = self._proxies.nearest(hop, forwarded)
        return None if hop is None else ip_from_text(hop[:LONGEST])


def _access(proxies: Proxies, *, allow: Any = None, deny: Any = None) -> Wrap:
    if allow is None and deny is None:
        raise ConfigError("there is neither allow nor deny; write one of them")
    allowing = None if allow is None else _conditions("allow", allow)
    denying = () if deny is None else _conditions("deny", deny)
    return lambda app: Access(app, proxies, allowing, denying)


def _conditions(option: str, given: Any) -> tuple[Condition, ...]:
    listed = given if isinstance(given, list) else [given]
    if not listed:
        raise ConfigError("the list is empty; write at least one network or header", path=option)
    try:
        return tuple(_condition(each, any if option == "deny" else all) for each in listed)
    except ConfigError as error:
        raise ConfigError(error.message, path=option) from None


def _condition(given: Any, of_lines: Callable[[Iterable[bool]], bool]) -> Condition:
    """`10.0.0.0/8`, `header X-Staff`, or `header X-Staff: yes`, which YAML reads as a mapping."""
    value = None
    if isinstance(given, dict):
        if len(given) != 1:
            raise ConfigError("write each header behind a dash of its own")
        ((given, said),) = given.items()
        if not isinstance(said, str | int):
            raise ConfigError(f"{shown(said)} is no value of a header; write a text")
        value = str(said).lower() if isinstance(said, bool) else str(said)
    words = str(given).split()
    if words[0].lower() == "header":
        if len(words) != 2:
            raise ConfigError(f"{shown(given)} names no header; write header X-Staff: yes")
        return _by_header(checked_token(words[1], "X-Staff").lower().encode(), value, of_lines)
    if value is not None:
        raise ConfigError(f"{shown(given)} has no values; write a network, or header NAME: value")
    network = network_from_spelling(str(given))
    return lambda address, _: address is not None and address in network


def _by_header(
    name: bytes, value: str | None, of_lines: Callable[[Iterable[bool]], bool]
) -> Condition:
    if value is None:
        return lambda _, scope: bool(_values(scope, name))
    wanted = value.encode()

    def said(_: IpAddress | None, scope: Scope) -> bool:
        # An attacker may add a line: one that opens among others opens nothing, one that closes closes.
        lines = _values(scope, name)
        return bool(lines) and of_lines(line.strip() == wanted for line in lines)

    return said


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for field, value in scope["headers"] if field == name]


access = Filter(_access, options=("allow", "deny"))
