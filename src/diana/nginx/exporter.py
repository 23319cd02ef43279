"""A folder that nginx includes: Lua, a configuration, and the rules as they are now.

diana.conf      for http {}: memory, and what runs when nginx and its workers start
limit.conf      for what is to be limited: http {}, a server or a location
rules.json      the rules to begin with; those that are published win
settings.json   the store, with its password: for the master process only
lock            by which workers exclude each other when they count; never replaced, so that a reload loses no count
lua/diana/      one idea a file; the kernels are those of the algorithms, as all stores run them

Lua has bytes only, so the export also writes which characters are printable and which are digits, by the tables of this Python.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from sys import maxunicode
from typing import Any
from unicodedata import decimal

from diana.core.errors import ConfigError, shown
from diana.core.policy import Policy
from diana.nginx.rules_json import ALGORITHMS, rules_key, wire_rules
from diana.redis_client.redis_url import BUDGET_US, NAMESPACE, RedisAddress, address_from_url
from diana.runtime.entry_points import algorithms
from diana.stores.redis.protocol.scripts import PRELUDE, keeps_log, scripts


def unicode_tables() -> str:
    ranges = ",".join(f"{first},{last}" for first, last in _not_printable())
    zeros = ",".join(
        str(point) for point in range(128, maxunicode + 1) if decimal(chr(point), -1) == 0
    )
    return f"-- Written by diana export nginx.\nreturn {{not_printable = {{{ranges}}}, zeros = {{{zeros}}}}}\n"


def _not_printable() -> Iterator[tuple[int, int]]:
    first = None
    for point in range(127, maxunicode + 2):
        printable = point > maxunicode or chr(point).isprintable()
        if printable and first is not None:
            yield first, point - 1
            first = None
        elif not printable and first is None:
            first = point


_SAFE = re.compile(r"[A-Za-z0-9_./-]+")
_SIZE = re.compile(r"([0-9]{1,15})([kKmM]?)")
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20}
_LEAST_MEMORY, _MOST_MEMORY = 8 << 10, 1 << 40
"""What nginx gives a shared dict at least, and more than a machine has."""
SECRET, OPEN = 0o600, 0o644

HTTP = """\
# Written by diana export nginx. Include it once in http {{ }}.
lua_package_path "{folder}/lua/?.lua;;";
lua_shared_dict diana_counters {memory};
lua_shared_dict diana_state 4m;
lua_shared_dict diana_debts 4m;
lua_socket_log_errors off;
init_by_lua_block {{ require("diana.guard").start("{folder}") }}
init_worker_by_lua_block {{ require("diana.guard").start_worker() }}
"""

LIMIT = """\
# Written by diana export nginx. Include it where requests are to be limited: in http { }, a server or a location.
# So that a client that leaves while its delay is waited out gives its place back.
lua_check_client_abort on;
access_by_lua_block { require("diana.guard").access() }
"""


def export_nginx(policy: Policy, store: str | None, folder: Path, memory: str = "32m") -> None:
    """ConfigError, and nothing is written, if nginx could not obey all of it."""
    memory = checked_memory(memory)
    folder = folder.absolute()
    if not _SAFE.fullmatch(str(folder)):
        raise ConfigError(
            f"{folder}: nginx would need quotes for this path; write one of letters, digits, dots, dashes and underscores"
        )
    rules = wire_rules(policy, has_store=store is not None)
    settings = {"store": _store(policy, store)} if store is not None else {}
    lua = folder / "lua" / "diana"
    lua.mkdir(parents=True, exist_ok=True)
    for source in files("diana.nginx").joinpath("lua", "diana").iterdir():
        _write(lua / source.name, source.read_text(encoding="utf-8"))
    _write(lua / "kernels.lua", kernels())
    _write(lua / "unicode_tables.lua", unicode_tables())
    _write(folder / "settings.json", json.dumps(settings, ensure_ascii=False), SECRET)
    _write(folder / "rules.json", rules)
    _write(folder / "limit.conf", LIMIT)
    _write(folder / "diana.conf", HTTP.format(folder=folder, memory=memory))
    with (folder / "lock").open("ab") as lock:
        os.fchmod(lock.fileno(), OPEN)


def checked_memory(size: str) -> str:
    """It is written into nginx's configuration as it is."""
    found = _SIZE.fullmatch(size)
    if found is not None:
        size_in_bytes = int(found[1]) * _FACTORS[found[2].lower()]
        if _LEAST_MEMORY <= size_in_bytes <= _MOST_MEMORY:
            return size
    raise ConfigError(
        f"memory must be a size of nginx, 8k or more (got {shown(size)}); write one such as 32m"
    )


def kernels() -> str:
    """Of every algorithm whose state is a few numbers, as it stands in its file."""
    known: Any = algorithms()
    lines = ["-- Written by diana export nginx.", "local redis, cjson = {}, {}", PRELUDE.strip()]
    lines += ["return {"]
    for code in ALGORITHMS:
        if not keeps_log(known[code]):
            lines.append(f"{code} = {known[code].lua.strip()},")
    return "\n".join([*lines, "}", ""])


def _store(policy: Policy, url: str) -> dict[str, Any]:
    address = address_from_url(url)
    _check(address)
    settings = policy.settings
    namespace = settings.namespace or address.namespace or NAMESPACE
    known = scripts()
    login = {name: address.login[name] for name in _LOGIN if name in address.login}
    return {
        "servers": [_server(endpoint.host, endpoint.port) for endpoint in address.endpoints],
        "cluster": address.kind == "cluster",
        "login": login,
        "budget_us": settings.store_budget_us or address.budget_us or BUDGET_US,
        "rules_key": rules_key(namespace, settings.rules_from),
        "sha_key": f"{namespace}:script:acquire",
        "sha": known["acquire"].sha.decode(),
        "acquire": known["acquire"].text.decode(),
        "read_sha": known["read"].sha.decode(),
        "read": known["read"].text.decode(),
        "swap_sha": known["swap"].sha.decode(),
        "swap": known["swap"].text.decode(),
    }


_LOGIN = ("username", "password", "db")


def _check(address: RedisAddress) -> None:
    if address.kind == "sentinel":
        raise ConfigError(
            "nginx does not ask sentinels; write the URL of one server, or of a cluster"
        )
    if address.login.get("tls"):
        raise ConfigError(
            "nginx speaks to the store without TLS; write redis:// or redis+cluster://, through a tunnel if need be"
        )


def _server(host: str, port: int) -> str:
    if not port:
        return host
    # Names are looked up by nginx's own `resolver`, which knows no /etc/hosts.
    host = "127.0.0.1" if host == "localhost" else host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _write(path: Path, text: str, mode: int = OPEN) -> None:
    """Whole, or not at all: nginx may be reloading."""
    new = path.with_name(f".{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(text.encode("utf-8", "surrogatepass"))
    new.replace(path)
