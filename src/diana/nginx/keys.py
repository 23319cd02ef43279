"""What nginx counts by, as actors: `$binary_remote_addr` is `ip`, `$http_x_tenant` is `header X-Tenant`.

A request whose key is empty is not limited there, which people use to let some pass: a `map` gives an empty key to those. That is `allow`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from diana.nginx.config import Directive

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_ALWAYS = {
    "binary_remote_addr": "ip",
    "remote_addr": "ip",
    "host": "host",
    "http_host": "host",
    "uri": "path",
    "document_uri": "path",
    "request_uri": "path",
}
_BY_NAME = {"arg_": "query", "http_": "header", "cookie_": "cookie"}


class Key(NamedTuple):
    actors: tuple[str, ...]
    """Empty: all together."""
    missing: str
    """`skip`: an empty key is not limited."""
    allow: dict[str, list[str]]
    by_server: bool = False
    """`$server_name` is part of it: each server counts apart."""
    remarks: tuple[str, ...] = ()


class Untranslatable(Exception):
    """Why."""


class Variables:
    """What `map` and `geo` define."""

    def __init__(self, directives: Iterable[Directive]) -> None:
        self._maps: dict[str, Directive] = {}
        self._geos: dict[str, Directive] = {}
        for one in directives:
            if one.args and one.name in ("map", "geo"):
                defined = self._maps if one.name == "map" else self._geos
                defined[one.args[-1].lstrip("$")] = one

    def key(self, text: str) -> Key:
        names = [found[1] or found[2] for found in _VARIABLE.finditer(text)]
        if len(names) == 1 and names[0] in self._maps:
            return self._mapped(self._maps[names[0]])
        return _plain_key(names)

    def _mapped(self, mapping: Directive) -> Key:
        """A map that gives some an empty key and all others one and the same."""
        keys = {one.args[0] for one in mapping.block if one.args and one.args[0]}
        left_alone = [one.name for one in mapping.block if one.args == ("",)]
        if len(keys) != 1 or len(mapping.args) != 2:
            raise Untranslatable(f"the map of {mapping.args[-1]} gives several keys")
        key = self.key(keys.pop())
        source = mapping.args[0].strip("${}")
        if "default" in left_alone:
            raise Untranslatable(f"the map of {mapping.args[-1]} leaves most clients alone")
        if source in self._geos:
            return key._replace(allow=_networks(self._geos[source], left_alone))
        plain = _plain_key([source])
        if any(value.startswith("~") for value in left_alone) or len(plain.actors) != 1:
            raise Untranslatable(f"the map of {mapping.args[-1]} has no plain values")
        return key._replace(allow={plain.actors[0]: left_alone} if left_alone else {})


def _networks(geo: Directive, left_alone: list[str]) -> dict[str, list[str]]:
    networks = [
        one.name
        for one in geo.block
        if one.args and one.args[0] in left_alone and one.name != "default"
    ]
    if any(one.name == "default" and one.args[0] in left_alone for one in geo.block):
        raise Untranslatable(f"the geo of {geo.args[-1]} leaves most addresses alone")
    return {"ip": networks} if networks else {}


def _plain_key(names: list[str]) -> Key:
    actors: list[str] = []
    remarks: list[str] = []
    by_server = False
    for name in names:
        if name == "server_name":
            by_server = True
            continue
        actors.append(_actor(name))
        if name == "request_uri":
            remarks.append("$request_uri is counted by path, without the query")
        if name.endswith("remote_addr"):
            remarks.append("IPv6 addresses are counted by their /64 network, not one by one")
    may_be_empty = [actor for actor in actors if " " in actor]
    if not may_be_empty:
        missing = ""
    elif len(may_be_empty) == len(actors) == 1 and not by_server:
        missing = "skip"
    else:
        missing = "ip" if "ip" in actors else "together"
        remarks.append(
            f"where a part of the key is missing, nginx counts by the rest; here such requests count by missing: {missing}"
        )
    return Key(tuple(dict.fromkeys(actors)), missing, {}, by_server, tuple(remarks))


def _actor(variable: str) -> str:
    if variable in _ALWAYS:
        return _ALWAYS[variable]
    for prefix, kind in _BY_NAME.items():
        name = variable.removeprefix(prefix)
        if name and name != variable:
            if kind == "header":
                name = "-".join(part.capitalize() for part in name.split("_"))
            return f"{kind} {name}"
    raise Untranslatable(f"there is no actor for ${variable}")
