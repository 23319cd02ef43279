"""`diana check --connect`: do the servers that a rules file names answer, and allow what nodes need?

What is tried is what a node does, on keys of its own that are removed at once: a decision by each algorithm of the rules, loading the
scripts, a heartbeat that leaves, reading overrides. No counter, no limit and no rule is touched.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from time import perf_counter
from typing import Any, NamedTuple

from diana.cli.store_argument import ENVIRONMENT
from diana.core.counter import meter_from_limit
from diana.core.errors import ConfigError, SourceError, StoreError
from diana.core.limit import Limit
from diana.core.matched_rules import HERE
from diana.core.policy import Policy
from diana.rules import open_source
from diana.rules.backends.server_list import shown_url
from diana.rules.loading import rules_from_remote
from diana.runtime.entry_points import algorithms
from diana.stores.redis.advice import what_to_write

FINE, WARNING, MISTAKE = "fine", "warning", "mistake"
DECISION = "a decision by"
PINGS = 5
PROBE_MS = 1_000
SECOND_US, HOUR_US = 1_000_000, 3_600_000_000
MOST = 5
CHARGES = ((0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 3), (7_200, 1))
"""Of a limit that is tried, when and how much: one is denied, and a log is searched for when it would pass; the last finds it expired."""
BEGIN_US = 1_700_000_000_000_000


class Finding(NamedTuple):
    kind: str
    """`fine`, `warning` or `mistake`."""
    where: str
    message: str


def findings(policy: Policy, text: bytes, name: str) -> Iterator[Finding]:
    """Of the global store, the local one, and the place that rules come from."""
    settings = policy.settings
    store = os.environ.get(ENVIRONMENT) or settings.store
    if store is not None:
        yield from _of_store("store", store, policy)
    if settings.local_store.startswith("shared://"):
        yield from _of_zone(settings.local_store)
    if settings.rules_from is not None:
        yield _of_rules(settings.rules_from.url, text, name)
    if store is None and settings.require_store:
        yield Finding(
            MISTAKE, "store",
            "require_store is true but no store is set, so the start fails; write store: redis://HOST:PORT, set DIANA_STORE, "
            "or remove require_store",
        )  # fmt: skip
    elif store is None and settings.rules_from is None:
        yield Finding(FINE, "store", "the file names no server: there is nothing to connect to")


def _of_store(which: str, url: str, policy: Policy) -> Iterator[Finding]:
    if url.startswith("shared://"):
        yield from _of_zone(url)
    elif "://" in url and not url.startswith("memory://"):
        where = f"{which} {shown_url(url)}"
        try:
            yield from _of_redis(where, url, policy)
        except ConfigError as error:
            yield Finding(MISTAKE, where, str(error))


def _of_zone(url: str) -> Iterator[Finding]:
    from diana.stores.zone.store import SharedStore, zone_kind
    from diana.stores.zone.zone_file import header_of_zone
    from diana.stores.zone.zone_size import spelling_from_size

    where = shown_url(url)
    try:
        name, size = SharedStore.check_url(url)
        header = header_of_zone(name)
    except StoreError:
        yield Finding(FINE, where, "there is no such zone yet; the first process makes it")
    except ConfigError as error:
        yield Finding(MISTAKE, where, str(error))
    else:
        has = spelling_from_size(header.size)
        yield Finding(FINE, where, f"a zone of {has}, kind {header.kind}")
        if size is not None and size != header.size:
            yield Finding(
                WARNING, where,
                f"the file says size={spelling_from_size(size)} and the zone has {has}; it is made anew once no process uses it",
            )  # fmt: skip
        if header.kind != zone_kind().kind:
            yield Finding(
                MISTAKE, where,
                f"the zone is of the kind {header.kind}, and this process uses {zone_kind().kind}; "
                f"stop the processes that use it, and run diana zone {name} --remove",
            )  # fmt: skip


def _of_rules(url: str, text: bytes, name: str) -> Finding:
    where = f"rules_from {shown_url(url)}"
    try:
        source = open_source(url)
        try:
            edition = source.load()
        finally:
            source.close()
        remote = rules_from_remote(edition.text, where, local=text)
    except SourceError as error:
        return Finding(MISTAKE, where, f"{error}; until it answers, nodes use the rules of {name}")
    except ConfigError as error:
        return Finding(MISTAKE, where, f"its rules are wrong:\n{error}")
    return Finding(FINE, where, f"{len(remote.rules)} rules, version {remote.version}")


def _of_redis(where: str, url: str, policy: Policy) -> Iterator[Finding]:
    from diana.redis_client.redis_url import BUDGET_US, address_from_url
    from diana.redis_client.reply_errors import Failure
    from diana.redis_client.topology import every_server

    address = address_from_url(url)
    budget_us = policy.settings.store_budget_us or address.budget_us or BUDGET_US
    try:
        with every_server(address) as servers:
            for server in servers:
                yield from _of_server(where, server, address.kind, budget_us)
        yield from _of_rights(where, address, policy)
    except Failure as failure:
        yield Finding(MISTAKE, where, f"cannot be used: {failure}{what_to_write(str(failure))}")


def _of_server(where: str, server: Any, kind: str, budget_us: int) -> Iterator[Finding]:
    seconds = sorted(_seconds_of_ping(server) for _ in range(PINGS))[PINGS // 2]
    info = _info(server)
    version = info.get("valkey_version") or info.get("redis_version")
    program = "Valkey" if "valkey_version" in info else "Redis"
    what = f"{program} {version}" if version else "a server"
    yield Finding(FINE, where, f"{what} answers in {seconds * 1_000:.1f} ms")
    if seconds * 2_000_000 > budget_us:
        yield Finding(
            WARNING, where,
            f"an answer takes {seconds * 1_000:.1f} ms, and requests wait {budget_us / 1_000:g} ms at most; "
            "use a nearer server, or write a larger store_budget",
        )  # fmt: skip
    if info.get("cluster_enabled") == "1" and kind != "cluster":
        yield Finding(
            MISTAKE, where,
            "this server is one of a cluster; write redis+cluster:// instead of redis://",
        )  # fmt: skip
    if info.get("role") == "slave":
        yield Finding(
            MISTAKE, where,
            f"this server is a replica, and refuses writes; write its master, {info.get('master_host')}:{info.get('master_port')}, "
            "or redis+sentinel://",
        )  # fmt: skip
    if info.get("maxmemory_policy", "").startswith("allkeys"):
        yield Finding(
            WARNING, where,
            f"it evicts by {info['maxmemory_policy']}: when its memory is full, it forgets counters; "
            "set maxmemory-policy noeviction or volatile-ttl",
        )  # fmt: skip
    if info.get("loading") == "1":
        yield Finding(WARNING, where, "it is loading its data, and refuses commands until then")
    if info.get("aof_enabled") == "0" and info.get("rdb_last_save_time"):
        yield Finding(
            FINE, where,
            "it keeps no append-only file: after a crash of the server, counters begin anew, or where its last snapshot was",
        )  # fmt: skip


def _seconds_of_ping(server: Any) -> float:
    """By TIME: PING is no right that a node needs."""
    from diana.redis_client.handshake import CONNECT_SECONDS
    from diana.redis_client.time_budget import Budget
    from diana.stores.redis.protocol.commands import command

    began = perf_counter()
    server.exchange(command("TIME"), Budget(CONNECT_SECONDS))
    return perf_counter() - began


def _info(server: Any) -> dict[str, str]:
    """Empty if this user may not ask."""
    from diana.redis_client.handshake import CONNECT_SECONDS
    from diana.redis_client.reply_errors import ServerRefused
    from diana.redis_client.time_budget import Budget
    from diana.stores.redis.protocol.commands import command

    try:
        text = server.exchange(command("INFO"), Budget(CONNECT_SECONDS))
    except ServerRefused:
        return {}
    lines = text.decode("utf-8", "replace").splitlines()
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def _of_rights(where: str, address: Any, policy: Policy) -> Iterator[Finding]:
    """What a node does, each thing tried once."""
    from diana.redis_client.handshake import CONNECT_SECONDS
    from diana.redis_client.reply_errors import Failure, ServerRefused
    from diana.redis_client.time_budget import Budget
    from diana.redis_client.topology import find_server

    refused: set[str] = set()
    for what, key, steps in _probes(policy):
        try:
            with find_server(address, key) as server:
                said = server.exchange(steps, Budget(CONNECT_SECONDS))
            if what.startswith(DECISION) and not isinstance(said[1], list):
                raise ServerRefused(said[1].decode("utf-8", "replace"))
        except Failure as failure:
            if what not in refused:
                yield Finding(
                    MISTAKE, where, f"{what} is refused: {failure}{what_to_write(str(failure))}"
                )
            refused.add(what)
    if not refused:
        user = address.login.get("username")
        as_user = f"user {user!r}" if user else "the user"
        yield Finding(FINE, where, f"{as_user} may do all that nodes need")


Probe = tuple[str, bytes, Any]
"""What it is, a key of the server to ask, and the exchange."""


def _probes(policy: Policy) -> Iterator[Probe]:
    from diana.redis_client.handshake import CONNECT_SECONDS
    from diana.redis_client.time_budget import Budget
    from diana.stores.redis.maintenance.heartbeat import SILENCE_MS, membership_keys
    from diana.stores.redis.maintenance.overrides_refresh import override_keys
    from diana.stores.redis.protocol.commands import acquire, call_script, command
    from diana.stores.redis.protocol.scripts import scripts, wire_limit
    from diana.stores.redis.protocol.server_clock import ServerClock

    namespace = policy.settings.namespace
    probe = f"{namespace}:check:{secrets.token_hex(8)}".encode()
    forget, clock = scripts()["reset"], ServerClock(lambda: None)
    used = {rule.meter.algorithm.code for rule in policy.rules if rule.scope not in HERE}
    for code in sorted(used or {"TB"}):
        meter = meter_from_limit("check", Limit(MOST, HOUR_US), algorithms()[code], {})
        limit = wire_limit(meter)
        for seconds, cost in CHARGES if limit is not None else ():
            request, now = ["take", 1, limit, cost], BEGIN_US + seconds * SECOND_US
            take = acquire(clock, [probe], request, now, Budget(CONNECT_SECONDS))
            yield f"{DECISION} {code}", probe, take
        yield "forgetting a counter", probe, call_script(forget, [probe], ("",))
    yield "loading a script", probe, command("SCRIPT", "LOAD", forget.text)
    yield "looking for a script", probe, command("SCRIPT", "EXISTS", forget.sha)
    yield "publishing a name", probe, command("SET", probe, "", "PX", PROBE_MS)
    yield "looking for a name", probe, command("EXISTS", probe)
    yield "forgetting a name", probe, call_script(forget, [probe], ("",))
    nodes, node = membership_keys(namespace), f"check-{secrets.token_hex(4)}"
    for silence in (SILENCE_MS, 0):  # it comes, and it leaves
        beat = call_script(scripts()["beat"], nodes, (node, "{}", silence, 1))
        yield "a heartbeat", nodes[0], beat
    overrides = override_keys(namespace)
    yield "reading overrides", overrides[-1], command("GET", overrides[-1])
    changes = call_script(scripts()["changes"], overrides, ("0", "0", 1))
    yield "reading overrides", overrides[0], changes
