"""Sentinel: after a fail-over the count goes on at the new master, whatever single sentinels believe."""

from __future__ import annotations

from tests.servers.awake import awake_seconds
from tests.servers.sentinel import Sentinel, SentinelGroup
from tests.servers.waiting import until
from tests.stores.redis.callers import InThreads, opened, until_asked, window

PATIENT = 5.0
SOON = 8.0
"""Two seconds, and what sentinels that stand still add; unnoticed, the old master would count on for ten."""


def test_a_planned_fail_over_is_noticed_though_the_old_master_still_answers() -> None:
    """It may count on for ten seconds, as a server that nothing replicates any more."""
    with SentinelGroup() as group, opened(group.url, PATIENT) as store:
        until_asked(store, window())
        with InThreads(store, window()) as callers:
            new = group.fail_over()
            began = awake_seconds()
            until(
                lambda: [one.endpoint.port for one in store._keeper.topology.servers] == [new.port],  # type: ignore[union-attr]
                "the new master is asked",
            )
            assert awake_seconds() - began < SOON
            callers.until_global()
        assert callers.errors == []


def test_a_sentinel_that_is_cut_off_is_not_believed() -> None:
    with SentinelGroup() as group:
        dead = group.kill_master()
        # Started now it finds neither the replica nor the other sentinels, and knows of no fail-over.
        with Sentinel(group.service, dead) as alone:
            first, _, rest = group.url.partition("://")
            with opened(f"{first}://127.0.0.1:{alone.port},{rest}", PATIENT) as store:
                until_asked(store, window())
                (server,) = store._keeper.topology.servers
                assert server.endpoint.port == group.master.port  # type: ignore[union-attr]
