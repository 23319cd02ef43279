"""From a middleware's options to its guard; and the warning that several worker processes each have counters of their own.

With local counters `rpu: 10` under `gunicorn -w 4` lets 40 pass. One of the workers warns.

Workers know nothing of each other, and each server reports their number in its own way, or not at all. But the workers of a server accept
connections at one address, are children of one process, and have the same rules. So each worker takes a name made of the three, as a socket
without a file, which the kernel frees when the process ends. The worker that finds the first name taken and takes the second is the second
worker, and warns; later ones are silent.

Servers that one shell, supervisor or test has started are children of one process, too, but each has an address of its own. Where no socket
listens yet, the server is looked at again at the first request.

Rejected: the parent process alone (unrelated servers have it in common), the command line (`-c` and `uvicorn.run(workers=)` are not in it)
and `wsgi.multiprocess` (only in requests, only WSGI, and all workers would warn).
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakSet

from diana.core.contracts import Client, Clock, Observer, Store
from diana.core.errors import ConfigError, DianaError, shown
from diana.core.limit import limits_from_spelling
from diana.core.policy import Policy
from diana.guard import AsyncGuard, Guard
from diana.rules import is_url

RULES_FILE = "diana.yaml"
Rules = str | Path | Policy | Mapping[str, Any]
"""Where the rules are, a Policy, or the rules themselves as a mapping."""

Kind = TypeVar("Kind", Guard, AsyncGuard)


def check_options(
    guard: Guard | AsyncGuard | None,
    rules: Rules | None,
    store: str | Store | Client | None,
    local_store: str | Store | None,
    clock: Clock | None,
    observers: Sequence[str | Observer],
) -> None:
    """Both at once cannot be meant."""
    options = any(option is not None for option in (rules, store, local_store, clock))
    if guard is not None and (options or observers):
        raise ConfigError("a guard has its own rules, stores, clock and observers; give either")


def open_guard(
    kind: type[Kind],
    rules: Rules | None,
    store: str | Store | Client | None,
    local_store: str | Store | None,
    clock: Clock | None,
    observers: Sequence[str | Observer],
    check: Callable[[Policy], None],
) -> Kind:
    """A guard of a policy, of a mapping, or of a file or URL, whose changes it follows. `check` raises ConfigError for rules that the
    middleware cannot use."""
    guard = _opened(kind, rules, store, local_store, clock, observers)
    try:
        guard._accept_rules_if(check)
    except ConfigError:
        guard._abandon()
        raise
    return guard


def _opened(
    kind: type[Kind],
    rules: Rules | None,
    store: str | Store | Client | None,
    local_store: str | Store | None,
    clock: Clock | None,
    observers: Sequence[str | Observer],
) -> Kind:
    options: dict[str, Any] = {"local_store": local_store, "clock": clock, "observers": observers}
    if isinstance(rules, Policy):
        return kind(rules, store, **options)
    where = RULES_FILE if rules is None else rules
    if isinstance(where, Mapping):
        return kind.from_file(where, store, **options)
    if not isinstance(where, str | Path):
        raise ConfigError(_no_rules(where))
    if isinstance(where, str) and _is_limit(where):
        raise ConfigError(
            f"rules= must be a rules file, a mapping or a Policy (got {shown(where)}, a limit); "
            'write rules={"url": "/", "rules": [{"actor": "ip", "unit": "minute", "rpu": 100}]}'
        )
    try:
        return kind.from_file(where, store, **options)
    except ConfigError as error:
        if is_url(where) or Path(where).is_absolute() or Path(where).exists():
            raise
        raise ConfigError(
            f"{error}; a relative path is looked for in the folder in which the server was started: "
            f"write rules=Path(__file__).with_name({Path(where).name!r}) or an absolute path"
        ) from None


def _no_rules(value: object) -> str:
    write = (
        "write guard=, without rules="
        if isinstance(value, Guard | AsyncGuard)
        else f'write rules="{RULES_FILE}"'
    )
    return f"rules= must be a rules file, a mapping or a Policy (got {shown(value)}); {write}"


def _is_limit(text: str) -> bool:
    try:
        limits_from_spelling(text)
    except DianaError:
        return False
    return not Path(text).exists()


log = logging.getLogger("diana")

_lock = Lock()
_taken: dict[str, list[socket.socket]] = {}
"""By name, in this process."""
is_undecided = False
"""Whether the first request has to look: a server may load the app before it forks (gunicorn --preload), or before it listens."""


_guards: WeakSet[Guard | AsyncGuard] = WeakSet()
"""Of the middlewares of this process."""


def warn_of_several_workers(guard: Guard | AsyncGuard) -> None:
    """Once per process and rules: take a name, and warn if this is the second process that does."""
    global is_undecided
    # Tests run in several processes too, and serve no clients.
    if not sys.platform.startswith("linux") or "pytest" in sys.modules:
        return
    _guards.add(guard)
    if not _look(guard):
        is_undecided = True


def look_again() -> None:
    """At the first request, for middlewares that were made before this process was forked or listened."""
    global is_undecided
    is_undecided = False
    for guard in list(_guards):
        _look(guard)


def _look(guard: Guard | AsyncGuard) -> bool:
    """False if this process listens nowhere yet."""
    policy = guard.policy
    rules = [rule for rule in policy.rules if rule.scope == "local" or not guard.has_shared_store]
    if not rules or guard.counts_for_machine:
        return True
    addresses = listening_addresses()
    if 2 in [_place_at(address, policy.version) for address in addresses]:
        rule = rules[0]
        log.warning(
            "several worker processes serve these rules, and each counts by itself: rule %r lets %d pass in every one of them; "
            "to count together on this machine, write local_store: shared://NAME, such as local_store: shared://api; "
            "for several machines, scope: global and a store, such as store: redis://localhost:6379",
            rule.name,
            rule.rpu,
        )
    return bool(addresses)


def listening_addresses() -> set[str]:
    """Where this process accepts connections."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(number))) as opened:
                if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found.add(f"{opened.family} {opened.getsockname()!r}")
        except OSError:
            continue  # closed meanwhile
    return found


def _place_at(address: str, version: str) -> int | None:
    """1 for the first worker at this address, 2 for the second; None if this process has a place, or for all others."""
    told = sha256(f"{os.getppid()} {address} {version}".encode()).hexdigest()[:32]
    name = f"diana-{os.getuid()}-{told}"
    with _lock:
        if name in _taken:
            return None
        _taken[name] = []
        return next((place for place in (1, 2) if _takes(name, place)), None)


def _takes(name: str, place: int) -> bool:
    taken = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        taken.bind(f"\0{name}-{place}")
    except OSError:
        taken.close()
        return False
    _taken[name].append(taken)
    return True


def _forget_in_child() -> None:
    """The parent's names stay the parent's. Not taken anew at once: not every child is a worker."""
    global is_undecided, _lock
    _lock = Lock()
    is_undecided = is_undecided or bool(_taken)
    for sockets in _taken.values():
        for taken in sockets:
            taken.close()
    _taken.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
