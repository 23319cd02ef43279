"""nginx's variables that are properties of a request, as actors: `$binary_remote_addr` is `ip`, `$http_x_tenant` is `header X-Tenant`."""

from __future__ import annotations

from ipaddress import ip_address
from typing import NamedTuple

from diana.nginx.importing.notes import Untranslatable
from diana.nginx.importing.paths import url_of_path
from diana.nginx.importing.tables import Variable

_AS_SENT = (
    "nginx finds ${} in any case and takes its value as it is sent; "
    "here the name has a case and the value is decoded"
)
_BY_PREFIX = {"arg_": "query", "http_": "header", "cookie_": "cookie"}


class Property(NamedTuple):
    actor: str
    remarks: tuple[str, ...] = ()
    """What nginx does otherwise."""
    is_fixed_length: bool = False

    @property
    def may_be_absent(self) -> bool:
        """Then nginx's value is empty."""
        return " " in self.actor

    @property
    def has_case(self) -> bool:
        return self.actor not in ("ip", "host")

    def listed(self, value: str) -> str | None:
        """A value of a map as `allow` and `only` have it; None if no request has it."""
        if "${" in value or not value.isprintable():
            raise Untranslatable("the map has a value that no list can have")
        if self.actor == "ip":
            return _address(value)
        if self.actor == "path":
            return url_of_path(value) if value.startswith("/") else None
        return value.strip() or None


_ALWAYS = {
    "binary_remote_addr": Property("ip", (), True),
    "remote_addr": Property("ip"),
    "host": Property("host"),
    "http_host": Property("host", ("$http_host is counted in lower case and without the port",)),
    "uri": Property(
        "path", ("nginx counts $uri with a slash at its end apart; here /a and /a/ are one path",)
    ),
    "request_uri": Property("path", ("$request_uri is counted by path, without the query",)),
}
_ALWAYS["document_uri"] = _ALWAYS["uri"]


def property_of_variable(variable: Variable) -> Property:
    found = _ALWAYS.get(variable.name)
    if found is not None:
        return found
    for prefix, kind in _BY_PREFIX.items():
        if variable.name.startswith(prefix) and variable.name != prefix:
            name = variable.spelling[len(prefix) :]
            if kind == "header":
                return Property("header " + "-".join(map(str.capitalize, name.split("_"))))
            return Property(f"{kind} {name}", (_AS_SENT.format(variable.spelling),))
    raise Untranslatable(f"there is no actor for ${variable.spelling}")


def _address(text: str) -> str | None:
    """nginx compares texts, and writes an address in one way."""
    try:
        return text if str(ip_address(text)) == text else None
    except ValueError:
        return None
