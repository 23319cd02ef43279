"""`scope: divided`: each node counts alone, with its part of the limit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diana import Guard, Request
from diana.core.counter import meter_from_limit
from diana.core.limit import Limit
from diana.core.node_share import Share, divided
from diana.core.policy import Policy
from diana.rules.loading import rules_from_bytes
from diana.runtime.entry_points import algorithms
from diana.stores.redis.maintenance.heartbeat import SILENCE_MS
from diana.testing import FakeClock
from tests.servers.server import Server
from tests.servers.waiting import until

BEGIN_US = 1_700_000_000_000_000
RULE = "{actor: all, unit: hour, rpu: 120, algo: W, scope: divided}"


def policy(settings: str = "", rule: str = RULE) -> Policy:
    return rules_from_bytes(f"{settings}\nlimits:\n- url: /\n  rules: [{rule}]\n".encode())


def passes(guard: Guard, times: int = 200) -> int:
    return sum(guard.check(Request("GET", "/")).allowed for _ in range(times))


@contextmanager
def nodes(server: Server, *weights: int) -> Iterator[list[Guard]]:
    """One for each weight, on one clock: what passes is a matter of shares alone."""
    clock = FakeClock(BEGIN_US)
    with ExitStack() as stack:
        guards = []
        for weight in weights:
            guard = Guard(policy(f"store_budget: 10s\nweight: {weight}"), server.url, clock=clock)
            stack.callback(guard.close)
            guards.append(guard)
        yield guards


@pytest.mark.parametrize(
    ("settings", "rule", "passing"),
    [
        ("", RULE, 120),
        ("nodes: 4", RULE, 30),
        ("nodes: 4\nweight: 3", RULE, 90),
        ("nodes: 2\nweight: 3", RULE, 120),
        ("nodes: 7", RULE, 17),
        ("nodes: 4", "{unit: hour, rpu: 100, scope: divided}", 25),
        ("nodes: 4", "{unit: hour, rpu: 100, burst: 10, scope: divided}", 2),
        ("nodes: 4", "{unit: hour, rpu: 100, burst: 3, scope: divided}", 1),
        ("nodes: 8\nweight: 3", "{unit: hour, rpu: 100, burst: 80, scope: divided}", 30),
        ("nodes: 4", "{unit: hour, rpu: 40, algo: SW, scope: divided}", 10),
        ("nodes: 4", "{unit: hour, rpu: 40, algo: SL, scope: divided}", 10),
        ("nodes: 4", "{unit: hour, rpu: 40, algo: LB, burst: 39, nodelay: true, scope: divided}", 10),
    ],
)  # fmt: skip
def test_without_a_store_a_node_gets_its_part_of_what_nodes_says(
    settings: str, rule: str, passing: int
) -> None:
    assert passes(Guard(policy(settings, rule), clock=FakeClock(BEGIN_US))) == passing


def test_an_override_is_divided_too() -> None:
    rule = (
        "{actor: header X-Id, unit: hour, rpu: 40, scope: divided, overrides: {acme: {rpu: 400}}}"
    )
    guard = Guard(policy("nodes: 4", rule), clock=FakeClock(BEGIN_US))
    request = Request("GET", "/", [("X-Id", "acme")])
    assert sum(guard.check(request).allowed for _ in range(200)) == 100


def test_a_denial_by_a_narrower_rule_charges_nothing() -> None:
    rules = rules_from_bytes(
        b"nodes: 4\nlimits:\n"
        b"- {url: /, rules: [{unit: hour, rpu: 40, scope: divided, name: fleet}]}\n"
        b"- {url: /a, rules: [{unit: hour, rpu: 3}]}\n"
    )
    guard = Guard(rules, clock=FakeClock(BEGIN_US))
    assert [guard.check(Request("GET", "/a")).allowed for _ in range(5)] == [True] * 3 + [False] * 2
    assert guard.peek(Request("GET", "/")).decisions[0].remaining == 6


def test_what_is_refunded_comes_back_to_the_share() -> None:
    guard = Guard(policy("nodes: 4"), clock=FakeClock(BEGIN_US))
    verdicts = [guard.check(Request("GET", "/")) for _ in range(30)]
    assert not guard.check(Request("GET", "/"))
    guard.refund(verdicts[0])
    assert passes(guard) == 1


def test_a_share_is_announced_as_it_is() -> None:
    guard = Guard(policy("nodes: 4"), clock=FakeClock(BEGIN_US))
    (decision,) = guard.check(Request("GET", "/")).decisions
    assert (decision.limit, decision.remaining) == (30, 29)


def test_the_fleet_is_divided_by_its_weights(redis7: Server) -> None:
    redis7.ask("FLUSHALL")
    with nodes(redis7, 1, 3, 2) as guards:
        until(
            lambda: [guard.share for guard in guards] == [(1, 6), (3, 6), (2, 6)],
            "all are heard of",
        )
        assert [passes(guard) for guard in guards] == [20, 60, 40]


def test_what_was_counted_is_kept_when_a_limit_is_divided_anew(redis7: Server) -> None:
    redis7.ask("FLUSHALL")
    with nodes(redis7, 1) as (first,):
        until(lambda: redis7.ask("ZCARD", "{diana:nodes}") == 1, "it is there")
        assert passes(first, 20) == 20
        with nodes(redis7, 2) as (second,):
            until(lambda: (first.share, second.share) == ((1, 3), (2, 3)), "both know of both")
            assert passes(first) == 20, "20 of 40 were used"
            assert passes(second) == 80
        until(lambda: first.share == Share(1, 1), "the second has left")
        assert passes(first) == 80


def node_of(server: Server, weight: int) -> str:
    told = server.ask("HGETALL", "{diana:nodes}:weights")
    return str(next(id.decode() for id, one in told.items() if id and int(one) == weight))


def test_a_new_node_is_counted_in_within_two_heartbeats_of_each(redis7: Server) -> None:
    """By the heartbeats themselves, whatever the machine's pace: the one after the newcomer's first tells."""
    redis7.ask("FLUSHALL")
    with nodes(redis7, 1) as (first,):
        until(lambda: redis7.ask("ZCARD", "{diana:nodes}") == 1, "the first is there")
        id = node_of(redis7, 1)
        with nodes(redis7, 2):
            until(lambda: redis7.ask("ZCARD", "{diana:nodes}") == 2, "the second is there")
            heard = redis7.ask("ZSCORE", "{diana:nodes}", id)
            until(lambda: redis7.ask("ZSCORE", "{diana:nodes}", id) != heard, "one heartbeat")
            heard = redis7.ask("ZSCORE", "{diana:nodes}", id)
            # That one was answered before the next is sent.
            until(
                lambda: (
                    first.share.total == 3 or redis7.ask("ZSCORE", "{diana:nodes}", id) != heard
                ),
                "the second heartbeat",
            )
            assert first.share.total == 3


def test_a_killed_node_is_counted_out(redis7: Server) -> None:
    redis7.ask("FLUSHALL")
    # As if a node of weight 3 had said so just now, and was killed.
    with nodes(redis7, 1) as (guard,):
        until(lambda: redis7.ask("ZCARD", "{diana:nodes}") == 1, "it is there")
        # In a minute from now: however long we stand still, it has been heard of just now.
        now_ms = int(time.time() * 1_000) + 60_000
        redis7.ask("HSET", "{diana:nodes}:weights", "dead", 3)
        redis7.ask("HINCRBY", "{diana:nodes}:weights", "", 3)
        redis7.ask("ZADD", "{diana:nodes}", now_ms, "dead")
        until(lambda: guard.share == Share(1, 4), "it counts")
        redis7.ask("ZINCRBY", "{diana:nodes}", -60_000 - SILENCE_MS, "dead")
        until(lambda: guard.share == Share(1, 1), "it is gone")
        assert redis7.ask("HLEN", "{diana:nodes}:weights") == 2


def test_weights_that_were_evicted_are_found_again(redis7: Server) -> None:
    redis7.ask("FLUSHALL")
    with nodes(redis7, 2, 5) as guards:
        until(lambda: all(guard.share.total == 7 for guard in guards), "both are heard of")
        redis7.ask("DEL", "{diana:nodes}:weights")
        until(lambda: redis7.ask("HLEN", "{diana:nodes}:weights") == 3, "both have said it again")
        until(lambda: all(guard.share.total == 7 for guard in guards), "and know it")


@given(
    rpu=st.integers(1, 10**6),
    burst=st.integers(1, 10**4),
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=12),
)
def test_shares_never_add_up_to_more_than_the_limit_and_one_per_node(
    rpu: int, burst: int, weights: list[int]
) -> None:
    total, unit_us = sum(weights), 60_000_000
    bucket = meter_from_limit("b", Limit(rpu, unit_us), algorithms()["TB"], {"burst": burst})
    window = meter_from_limit("w", Limit(rpu, unit_us), algorithms()["W"], {})
    buckets = [divided(bucket, total, weight) for weight in weights]
    windows = [divided(window, total, weight) for weight in weights]
    assert sum(one.params.limit for one in buckets) <= burst + len(weights)
    assert sum(one.limit.rpu * unit_us / one.limit.unit_us for one in buckets) <= rpu * (1 + 1e-9)
    assert sum(one.params.limit for one in windows) <= rpu + len(weights)
    assert all(gcd(one.limit.rpu, one.limit.unit_us) for one in buckets)
