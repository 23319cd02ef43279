"""Sentinels name another master: by command, or because the old one died."""

from __future__ import annotations

import pytest

from tests.servers.sentinel import SentinelGroup
from tests.servers.waiting import until
from tests.stores.redis.callers import (
    BUDGET,
    MARGIN,
    SIDES,
    STALL,
    Side,
    changes,
    complaints,
    in_pairs,
    opened,
    until_asked,
    window,
)


@SIDES
def test_the_count_goes_on_at_the_new_master(side: Side, caplog: pytest.LogCaptureFixture) -> None:
    day = window()
    with SentinelGroup() as sentinels, opened(sentinels.url) as store:
        until_asked(store, day)
        with side(store, day) as callers:
            # The old master lives on as a replica: it answers READONLY.
            sentinels.fail_over()
            callers.until_global()
            until(lambda: in_pairs(changes(caplog)), "after each loss that it is back is said")
            sentinels.kill_master()
            callers.until_global()
        assert callers.errors == []
        assert callers.slowest() < BUDGET + MARGIN
        assert callers.longest_stall < STALL
        until(lambda: changes(caplog)[-1] == "back", "that it is back is said")
        assert complaints(caplog) == []
        counts = store.counts()
        assert counts["breaker_opened"] == counts["breaker_closed"] >= 1
