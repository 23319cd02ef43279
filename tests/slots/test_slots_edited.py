"""A live edit of `hold`: slots that are held stay held, in every store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diana import Guard, Request
from diana.rules.loading import rules_from_bytes
from diana.testing import FakeClock
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.shared.zones import zone_name

BEGIN_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
RULES = """
namespace: edited
limits:
  - url: /
    rules:
      - {actor: account, algo: C, most: %s, hold: %s, scope: global, overrides: {alice: {most: 1}}}
identity: {account: header X-Account-Id}
"""
PATIENT = "budget=10s"


@pytest.fixture(params=["memory", "zone", "redis"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "memory":
        yield "memory://"
    elif request.param == "zone":
        with zone_name() as name:
            yield f"shared://{name}?size=4m"
    else:
        redis7: Server = request.getfixturevalue("redis7")
        redis7.client().flushall()
        yield f"{redis7.url}?{PATIENT}"


def edit(guard: Guard, hold: str, most: int = 1) -> None:
    guard._evaluator.swap(rules_from_bytes((RULES % (most, hold)).encode()))


def asked(account: str) -> Request:
    return Request("GET", "/", [("X-Account-Id", account)])


@pytest.mark.parametrize("account", ["bob", "alice"])
def test_a_shortened_hold_does_not_expire_slots_of_before(url: str, account: str) -> None:
    clock = FakeClock(BEGIN_US)
    guard = Guard(rules_from_bytes((RULES % (1, "60s")).encode()), url, clock=clock)
    first = guard.check(asked(account))
    assert first
    clock.advance(20)
    edit(guard, "1s")
    assert not guard.check(asked(account))
    clock.advance(10)
    edit(guard, "500ms")
    clock.advance(30 - 1e-6)
    assert not guard.check(asked(account)), "60 s after it was acquired it still counts"
    clock.advance(1e-6)
    second = guard.check(asked(account))
    assert second, "nobody has renewed the first slot"
    clock.advance(60)
    third = guard.check(asked(account))
    assert third, "the second slot has the new hold, and nobody has renewed it either"
    guard.release(third)
    assert guard.check(asked(account)), "a slot is released by its name"
    guard.close()


def test_a_slot_acquired_while_the_former_hold_counts_is_released_by_its_name(url: str) -> None:
    clock = FakeClock(BEGIN_US)
    guard = Guard(rules_from_bytes((RULES % (1, "60s")).encode()), url, clock=clock)
    edit(guard, "1s")
    for _ in range(2):
        verdict = guard.check(asked("bob"))
        assert verdict, "the one before was released"
        assert verdict.decisions[0].reset_after == 60
        guard.release(verdict)
    guard.close()


def test_held_slots_are_renewed_at_the_pace_of_the_new_hold() -> None:
    guard = Guard(rules_from_bytes((RULES % (1, "60s")).encode()), "memory://")
    verdict = guard.check(asked("bob"))
    with guard.keep_slots(verdict) as held:
        (slot,) = held._places
        acquired_at = slot.at
        edit(guard, "300ms")
        until(lambda: slot.at > acquired_at, "the slot is renewed long before a third of 60s")
        assert not guard.check(asked("bob"))
    assert guard.check(asked("bob"))
    guard.close()
