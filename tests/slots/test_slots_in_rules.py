"""`algo: C` in a rules file: places that requests take and give back, through a Guard."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from diana import AsyncGuard, ConfigError, Guard, Request, Verdict
from diana.core.charge import Charges
from diana.core.contracts import Store
from diana.core.decision import UNKNOWN, Decision
from diana.rules.loading import rules_from_bytes
from diana.slots.wait_queue import ThreadTicket
from diana.stores.memory import MemoryStore
from diana.testing import FakeClock
from tests.servers.ports import free_port
from tests.servers.server import Server
from tests.servers.waiting import until

PATIENT = "budget=10s"
FIVE = "{url: /, rules: [{actor: ip, algo: C, most: 5}]}"


def guard_of(text: str, store: str | Store | None = None, **options: Any) -> Guard:
    return Guard(rules_from_bytes(text.encode()), store, **options)


def request(path: str = "/", peer: str = "203.0.113.9") -> Request:
    return Request("GET", path, [], "", peer)


def mistakes(rule: str) -> str:
    with pytest.raises(ConfigError) as raised:
        rules_from_bytes(f"{{url: /, rules: [{rule}]}}".encode())
    return str(raised.value)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("{algo: C}", "there is no most; write most here, such as most: 5"),
        (
            "{algo: C, most: 5, unit: minute}",
            "unit is foreign to concurrency (C), which has most, hold",
        ),
        ("{algo: C, most: 5, rpu: 5}", "rpu is foreign to concurrency (C)"),
        ("{algo: TB, unit: minute, rpu: 5, most: 5}", "most is foreign to token bucket (TB)"),
        ("{algo: W, unit: minute, rpu: 5, hold: 5s}", "hold is foreign to window (W)"),
        ("{algo: C, most: 0}", "from 1"),
        ("{algo: C, most: 100001}", "at most 100,000"),
        ("{algo: C, most: 5, hold: 10ms}", "write at least 100ms"),
        ("{algo: C, most: 5, cost: 6}", "cost 6 can never pass"),
        ("{algo: C, most: 5, max_waiting: 3}", "write max_wait: 1s too"),
        ("{algo: C, most: 5, charge_on: [200]}", "holds a place until the answer is sent"),
        ("{algo: C, most: 5, burst: 5}", "burst is foreign"),
        (
            "{actor: ip, algo: C, most: 5, overrides: {10.0.0.1: {rpu: 9}}}",
            "write most instead of rpu",
        ),
        (
            "{actor: ip, unit: minute, rpu: 5, overrides: {10.0.0.1: {most: 9}}}",
            "write rpu instead of most",
        ),
        (
            "{actor: ip, algo: C, most: 5, overrides: {10.0.0.1: {most: 9, rpu: 3}}}",
            "write one of them",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(rule: str, said: str) -> None:
    assert said in mistakes(rule)


def test_each_of_several_slots_of_one_moment_is_released() -> None:
    guard = guard_of(FIVE, clock=FakeClock())
    for _ in range(3):
        verdicts = [guard.check(request()) for _ in range(5)]
        assert all(verdicts), "all slots of the round before were released"
        for verdict in verdicts:
            guard.release(verdict)


def test_defaults_for_rates_are_not_for_places() -> None:
    policy = rules_from_bytes(
        b"{defaults: {unit: minute, rpu: 10, hold: 5s}, limits: [{url: /, rules: [{algo: C, most: 2}, {actor: ip}]}]}"
    )
    assert sorted(str(rule) for rule in policy.rules) == [
        "/: 10/minute by ip, TB, local",
        "/: 2 at once by all, C, local",
    ]
    assert {rule.name for rule in policy.rules} == {"/ all at once", "/ ip minute"}


def test_so_many_at_once_and_a_place_is_free_when_it_is_given_back() -> None:
    guard = guard_of(FIVE)
    inside = [guard.check(request()) for _ in range(5)]
    assert all(inside)
    denied = guard.check(request())
    assert denied.denial is not None
    assert denied.denial.outcome[2] == UNKNOWN
    assert guard.check(request(peer="203.0.113.10"))
    for _ in range(3):
        guard.release(inside[2])
    assert guard.check(request())
    assert not guard.check(request())


def test_tiers_and_overrides_have_places_of_their_own() -> None:
    guard = guard_of(
        "{identity: {tier: header X-Plan, trust_tier: true}, limits: [{url: /, rules: [{actor: ip, algo: C, "
        "most: {pro: 3, else: 1}, overrides: {203.0.113.7: {most: 2}}}]}]}"
    )
    pro = Request("GET", "/", [("X-Plan", "pro")], "", "203.0.113.9")
    assert [bool(guard.check(pro)) for _ in range(4)] == [True] * 3 + [False]
    other = [bool(guard.check(request(peer="203.0.113.8"))) for _ in range(2)]
    assert other == [True, False]
    named = [bool(guard.check(request(peer="203.0.113.7"))) for _ in range(3)]
    assert named == [True, True, False]


BOTH = """
limits:
  - url: /
    rules:
      - {actor: ip, unit: hour, rpu: 3, name: often}
      - {actor: ip, algo: C, most: 1, name: at once}
"""


@pytest.mark.parametrize("scope", ["local", "global"])
def test_a_denial_by_another_rule_takes_no_place_and_a_place_refused_charges_nobody(
    scope: str, redis7: Server
) -> None:
    text = BOTH.replace("ip, ", f"ip, scope: {scope}, ") + f"namespace: both-{scope}\n"
    guard = guard_of(text, f"{redis7.url}?{PATIENT}")
    first = guard.check(request())
    assert first
    for _ in range(5):
        assert guard.check(request()).denied_by is first.rules[1]
    guard.release(first)
    second = guard.check(request())
    guard.release(second)
    third = guard.check(request())
    assert second.allowed
    assert third.allowed, "a refused place was charged"
    guard.release(third)
    for _ in range(5):
        denied = guard.check(request())
        assert denied.denied_by is first.rules[0]
    (_, place) = guard.peek(request()).decisions
    assert place.allowed, "a denied request holds a place"
    guard.close()


def test_a_mix_of_local_and_global_gives_the_local_place_back(redis7: Server) -> None:
    text = (
        "{namespace: mixed, limits: [{url: /, rules: [{actor: ip, algo: C, most: 5}, "
        "{actor: ip, algo: C, most: 1, scope: global, name: fleet}]}]}"
    )
    guard = guard_of(text, f"{redis7.url}?{PATIENT}")
    assert guard.check(request())
    for _ in range(10):
        assert not guard.check(request())
    assert guard.peek(request()).decisions[0].remaining == 3
    guard.close()


def test_a_refund_and_a_reset_give_places_back() -> None:
    guard = guard_of("{url: /, rules: [{algo: C, most: 1}]}")
    guard.refund(guard.check(request()))
    assert guard.check(request())
    guard.reset(request())
    assert guard.check(request())


def test_a_rule_in_the_shadow_counts_and_denies_nobody() -> None:
    guard = guard_of("{url: /, rules: [{algo: C, most: 1, mode: shadow}]}")
    first, second = guard.check(request()), guard.check(request())
    assert first.allowed
    assert second.allowed
    assert [bool(one.decisions[0]) for one in (first, second)] == [True, False]
    guard.release(second)
    guard.release(first)
    assert guard.check(request()).decisions[0]


def test_held_renews_and_gives_back() -> None:
    guard = guard_of("{url: /, rules: [{algo: C, most: 1, hold: 600ms}]}")
    verdict = guard.check(request())
    passed = 0
    with guard.keep_slots(verdict):
        ends = time.monotonic() + 3
        while time.monotonic() < ends:
            passed += bool(guard.peek(request()))
            time.sleep(0.02)
    assert not passed or guard.expired_slots, "a place was free, and nobody says that it ran off"
    assert guard.check(request())


def test_a_place_that_ran_off_while_its_request_ran_is_counted(redis7: Server) -> None:
    """Its process stood still for longer than `hold`: played by a server that stands still."""
    text = "{namespace: expired, limits: [{url: /, rules: [{algo: C, most: 1, hold: 200ms, scope: global}]}]}"
    guard = guard_of(text, f"{redis7.url}?budget=50ms")
    verdicts: list[Verdict] = []

    def takes() -> bool:
        """From the store: a budget so small may be over before it answers."""
        verdicts.append(guard.check(request()))
        taken = verdicts[-1].allowed and not verdicts[-1].decisions[0].degraded
        if not taken:
            guard.release(verdicts[-1])
        return taken

    until(takes, "the store gives a place")
    try:
        with guard.keep_slots(verdicts[-1]):
            redis7.freeze()
            before = guard.expired_slots  # this process, too, may have stood still
            time.sleep(0.6)
        assert guard.expired_slots == before + 1
    finally:
        redis7.thaw()
    guard.close()


def test_without_a_store_there_is_the_nodes_share_of_the_places() -> None:
    text = "{nodes: 4, limits: [{url: /, rules: [{algo: C, most: 8, scope: global}]}]}"
    guard = guard_of(text, f"redis://127.0.0.1:{free_port()}")
    inside = [guard.check(request()) for _ in range(3)]
    assert [bool(verdict) for verdict in inside] == [True, True, False]
    assert all(verdict.decisions[0].degraded for verdict in inside)
    guard.release(inside[0])
    assert guard.check(request())
    with guard.keep_slots(inside[1]):
        pass
    until(lambda: bool(guard.peek(request())), "it is given back")
    guard.close()


WAITING = "{url: /, rules: [{actor: ip, algo: C, most: 1, max_wait: 60s, max_waiting: 3}]}"


def test_requests_wait_for_a_place_first_come_first_served() -> None:
    guard = guard_of(WAITING)
    order: list[int] = []
    told: list[Verdict] = []

    def ask(number: int) -> None:
        verdict = guard.wait(request())
        told.append(verdict)
        if verdict:
            order.append(number)
            guard.release(verdict)

    first = guard.wait(request())
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    lines = guard._evaluator.queues
    line = f"{first.rules[0].meter.id}|{first.decisions[0].key}"
    for number, thread in enumerate(threads, 1):
        thread.start()
        until(lambda: lines.length(line) == number, "it stands in line")  # noqa: B023
    assert not guard.wait(request()), "more wait than may"
    assert guard.wait(request(peer="203.0.113.10")), "one key waits for another"
    guard.release(first)
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2]


def test_nobody_overtakes_who_waits() -> None:
    async def play() -> list[str]:
        guard = AsyncGuard(rules_from_bytes(WAITING.encode()))
        order: list[str] = []
        first = await guard.wait(request())

        async def ask(name: str) -> None:
            verdict = await guard.wait(request())
            order.append(name)
            await guard.release(verdict)

        waiting = asyncio.create_task(ask("waits"))
        await asyncio.sleep(0)
        until_joined = guard._evaluator.queues
        while not until_joined:
            await asyncio.sleep(0)
        late = asyncio.create_task(ask("late"))
        await guard.release(first)
        await asyncio.gather(waiting, late)
        return order

    assert asyncio.run(play()) == ["waits", "late"]


@pytest.mark.parametrize("max_waiting", [1, 2], ids=["the line is full", "past max_wait"])
def test_a_free_place_is_for_those_who_wait_and_a_look_at_it_takes_none(max_waiting: int) -> None:
    guard = guard_of(
        f"{{url: /, rules: [{{algo: C, most: 1, max_wait: 50ms, max_waiting: {max_waiting}}}]}}"
    )
    first = guard.check(request())
    line = f"{first.rules[0].meter.id}|{first.decisions[0].key}"
    waits = ThreadTicket()
    guard._evaluator.queues.join(line, waits)  # it has not seen yet that a place was given back
    guard.release(first)
    denied = guard.wait(request())
    assert (denied.allowed, denied.denied_by) == (False, first.rules[0])
    assert denied.denial is not None
    assert denied.denial.outcome[2] == UNKNOWN
    guard.keep_slots(denied).release()
    guard._evaluator.queues.leave(line, waits)
    assert guard.wait(request())
    assert not guard.check(request())


class Interruption(BaseException):
    """As gevent's Timeout is one."""


class InterruptedStore(MemoryStore):
    """Elsewhere; who asks it is interrupted."""

    def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        raise Interruption


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
def test_an_interrupted_request_holds_no_place(mode: str) -> None:
    guard = guard_of(
        "{url: /, rules: [{algo: C, most: 1}, "
        f"{{unit: day, rpu: 9, scope: global, mode: {mode}, name: all}}]}}",
        InterruptedStore(),
    )
    for _ in range(3):
        with pytest.raises(Interruption):
            guard.check(request())


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
def test_a_cancelled_request_holds_no_place(redis7: Server, mode: str) -> None:
    async def play() -> None:
        rules = rules_from_bytes(
            f"{{namespace: cancelled-{mode}, limits: [{{url: /, rules: [{{algo: C, most: 1, name: here}}, "
            f"{{algo: C, most: 1, scope: global, mode: {mode}, name: there}}, "
            f"{{unit: day, rpu: 1000, scope: global, mode: {mode}, name: all}}]}}]}}".encode()
        )
        guard = AsyncGuard(rules, f"{redis7.url}?{PATIENT}")
        for _ in range(20):
            task = asyncio.create_task(guard.check(request()))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled()
        here, there, _ = (await guard.peek(request())).decisions
        assert here, "a cancelled request holds a place"
        while not there:  # it is given back in the background
            await asyncio.sleep(0.01)
            _, there, _ = (await guard.peek(request())).decisions
        await guard.close()

    asyncio.run(asyncio.wait_for(play(), 30))


def test_past_max_wait_it_is_denied_and_told_once() -> None:
    told: list[Verdict] = []
    clock = FakeClock(10**12)
    guard = guard_of(
        "{url: /, rules: [{algo: C, most: 1, hold: 60s, max_wait: 2s}]}",
        clock=clock,
        observers=[lambda _, verdict: told.append(verdict)],
    )
    assert guard.wait(request())
    before = clock()
    assert not guard.wait(request())
    assert 2.0 <= (clock() - before) / 1_000_000 < 2.5
    assert [verdict.allowed for verdict in told] == [True, False]


def test_explain_and_the_rule_say_at_once() -> None:
    guard = guard_of(FIVE)
    verdict = guard.check(request())
    assert "/: 5 at once by ip, C, local" in verdict.explain()
    for _ in range(4):
        guard.check(request())
    assert "all places are taken" in guard.check(request()).explain()
