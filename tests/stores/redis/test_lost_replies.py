"""A reply that is late, swallowed, doubled or cut is the trouble of its own call: it opens no breaker, and no caller is told another's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Thread

import pytest

from diana.core.decision import Decision
from diana.stores.redis.store import RedisStore
from tests.servers import faults
from tests.servers.faults import Fault
from tests.servers.proxy import FaultProxy
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.redis.callers import PATIENT, meter, opened, until_asked, used, window

CALLERS = 4
EACH = 250
SHARE = 0.01
BUDGET = 2.0

FAULTS: dict[str, Callable[[], Fault]] = {
    "swallowed": lambda: faults.swallowing(reaches_server=True),
    "late": lambda: faults.delaying(2 * BUDGET),
    "doubled": faults.doubling,
    "cut": faults.cutting,
}


def in_threads(
    store: RedisStore, ask: Callable[[RedisStore, int, int], Decision]
) -> list[Decision]:
    told: list[Decision] = []
    errors: list[BaseException] = []

    def call(caller: int) -> None:
        try:
            for number in range(EACH):
                told.append(ask(store, caller, number))
                until(lambda: not store.lost, "it is well")
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=call, args=(caller,)) for caller in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    return told


def take(store: RedisStore, caller: int, number: int) -> Decision:
    return store.decide([(window(name="mixed"), f"{caller} {number}", 1 + (caller + number) % 3)])[
        0
    ]


def in_tasks(store: RedisStore) -> list[Decision]:
    async def call(caller: int) -> list[Decision]:
        day = window(name="mixed")
        told = []
        for number in range(EACH):
            cost = 1 + (caller + number) % 3
            told += await store.asynchronous.decide([(day, f"{caller} {number}", cost)])
            while store.lost:
                await asyncio.sleep(0.005)
        return told

    async def run() -> list[Decision]:
        parts = await asyncio.gather(*map(call, range(CALLERS)))
        return [decision for part in parts for decision in part]

    return asyncio.run(run())


@pytest.mark.parametrize("side", ["threads", "tasks"])
@pytest.mark.parametrize("fault", FAULTS)
def test_replies_that_are_now_and_then(
    fault: str, side: str, proxy: FaultProxy, redis7: Server
) -> None:
    redis7.client().flushall()
    with opened(proxy.url, BUDGET) as store:
        until_asked(store, window())
        proxy.sometimes(FAULTS[fault](), SHARE)
        told = in_threads(store, take) if side == "threads" else in_tasks(store)
        proxy.pass_on()
        until(lambda: not store.lost, "it is well")
        assert store.counts()["breaker_opened"] <= 1
        degraded = sum(decision.degraded for decision in told)
        assert degraded <= 0.08 * len(told)
        # Each key is asked once, so what remains tells whether a caller got its own reply.
        for decision in told:
            assert decision
            assert decision.degraded or decision.limit - decision.remaining == decision.cost


def test_what_may_have_been_counted_is_charged_at_most_once(
    proxy: FaultProxy, redis7: Server
) -> None:
    """The server hears and acts; the reply never comes. By the script or afterwards, but not twice."""
    redis7.client().flushall()
    day = window()
    with opened(proxy.url, 0.5) as store:
        until_asked(store, day)
        proxy.mute()
        admitted = 0
        while not store.lost:
            admitted += bool(store.decide([(day, "k", 1)])[0])
        for _ in range(20):
            admitted += bool(store.decide([(day, "k", 1)])[0])
        proxy.pass_on()
        until(lambda: not store.lost, "it is back")
        until(lambda: not store.decider()._fallback.owes(), "all is settled")
        assert used(store, day) <= admitted


def test_a_degraded_decision_of_unknown_outcome_gives_nothing_back_to_the_store(
    proxy: FaultProxy, redis7: Server
) -> None:
    redis7.client().flushall()
    day = window(10)
    with opened(proxy.url, BUDGET) as store:
        until_asked(store, day)
        assert all(store.decide([(day, "k", 1)])[0] for _ in range(5))
        proxy.mute()
        (unknown,) = store.decide([(day, "k", 1)])
        assert unknown.degraded
        proxy.pass_on()
        until(lambda: not store.lost, "it is back")
        before = used(store, day)
        for _ in range(3):
            store.refund_here([(day, "k", 1)], unknown.at)
        assert used(store, day) == before


def test_repeated_short_outages_admit_no_more_than_the_limit(
    proxy: FaultProxy, redis7: Server
) -> None:
    """What is counted here starts from what the store said last, and what the store counts next from what was counted here."""
    redis7.client().flushall()
    bucket = meter("TB", "100/day", "flapping")
    with opened(proxy.url, PATIENT) as store:
        until_asked(store, bucket)
        admitted = 0
        for _ in range(5):
            admitted += sum(bool(store.decide([(bucket, "k", 1)])[0]) for _ in range(60))
            proxy.refuse()
            # Until no call is sent any more: of one that is, it would not be known whether it was counted.
            until(lambda: store.decide([(bucket, "x", 1)])[0].degraded and store.lost, "it is lost")
            admitted += sum(bool(store.decide([(bucket, "k", 1)])[0]) for _ in range(60))
            proxy.pass_on()
            until(lambda: not store.lost, "it is back")
            until(lambda so_far=admitted: used(store, bucket) == so_far, "all is settled")  # type: ignore[misc]
        # 300 would be allowed by "each outage starts with a full bucket".
        assert admitted == 100
