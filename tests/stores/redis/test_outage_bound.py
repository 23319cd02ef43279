"""A fleet cut off from its store admits at most the limit, one more burst, and one per node; all of it is charged once."""

from __future__ import annotations

from tests.stores.redis.fleet import NODES, cut_off


def test_a_fleet_that_is_cut_off() -> None:
    outage = cut_off(seconds=2.0)
    assert outage.here > 0
    assert outage.admitted <= outage.bound
    # Each node may have been cut off from the reply to one call: counted by the server or not, it is not charged again.
    assert -NODES <= outage.charged <= NODES
