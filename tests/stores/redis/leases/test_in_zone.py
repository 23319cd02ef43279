"""A lease that the processes of a machine hold together, in their zone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pytest

from diana import Guard, Policy, Request
from diana.core.counter import meter_from_limit
from diana.core.limit import Limit
from diana.core.node_share import Shares, share_without_registry
from diana.core.settings import LeaseTerms
from diana.rules.loading import rules_from_bytes
from diana.runtime.entry_points import algorithms
from diana.stores.redis.leases.lease import Lease
from diana.stores.redis.leases.lease_request import LeaseGrant, LeaseRequest, lease_key
from diana.stores.redis.leases.lease_table import HOT, LeaseClaim
from diana.stores.redis.leases.zone_lease import LEASES, ZoneLease, ZoneLeaseTable
from diana.stores.redis.store import RedisStore
from diana.stores.zone.store import SharedStore
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.shared.zones import zone_name

MS = 1_000
SECOND = 1_000_000
ANY = Request("GET", "/")
METER = meter_from_limit("diana:x", Limit(1_000, SECOND), algorithms()["TB"], {})


@pytest.fixture(params=["native", "python"])
def zone(request: pytest.FixtureRequest) -> Iterator[SharedStore]:
    with zone_name() as name:
        yield SharedStore(name, 4 << 20, kind=request.param)


def worker(zone: SharedStore, now: int = 0) -> ZoneLease:
    """What one process knows of it."""
    return ZoneLease(zone, "store", METER, "k", b"diana:x|k", LeaseTerms(), now)


def granted(permits: int, kept: int = 0) -> LeaseGrant:
    return LeaseGrant(True, permits, kept, SECOND, 100, 0, 0, 2)


def ask(one: Lease, now: int) -> LeaseRequest | None:
    """As the thread that refills does; None: it is not due."""
    one.load(now)
    made = one.begin(now, 1) if one.is_due(now) else None
    assert one.save()
    return made


def hear(one: Lease, asked: LeaseRequest, grant: LeaseGrant | None, now: int) -> None:
    one.load(now)
    one.finish(asked, grant, 10**15 + now, now)
    assert one.save()


def take(one: Lease, now: int) -> bool:
    one.load(now)
    taken = one.take(1, now)
    assert one.save()
    return taken


def filled(zone: SharedStore, permits: int) -> tuple[ZoneLease, ZoneLease]:
    one, other = worker(zone), worker(zone)
    assert not take(one, 0)
    first = ask(one, 0)
    assert first is not None
    hear(one, first, granted(permits), MS)
    return one, other


def test_what_one_is_granted_all_may_take_and_no_more(zone: SharedStore) -> None:
    one, other = filled(zone, 10)
    assert [take(one, 2 * MS) or take(other, 2 * MS) for _ in range(5)] == [True] * 5
    assert sum(take(worker(zone), 2 * MS) for _ in range(10)) == 5
    one.load(3 * MS)
    assert (one.permits, one.used) == (0, 10)


def test_one_asks_for_all(zone: SharedStore) -> None:
    one, other = filled(zone, 1)
    assert take(other, 2 * MS)
    asked = ask(other, 30 * MS)
    assert asked is not None
    assert asked.used == 1
    assert ask(one, 31 * MS) is None
    hear(other, asked, granted(5), 32 * MS)
    assert take(one, 33 * MS)


def test_if_the_one_that_asks_is_killed_another_does_within_the_ttl(zone: SharedStore) -> None:
    one, other = filled(zone, 3)
    assert take(one, 2 * MS)
    assert take(one, 2 * MS)
    assert take(one, 2 * MS)
    unheard = ask(one, 30 * MS)
    assert unheard is not None
    assert ask(other, 400 * MS) is None
    again = ask(other, 530 * MS)
    assert again is not None
    assert (again.node, again.seq) == (unheard.node, unheard.seq + 1)
    assert (again.base, again.used) == (unheard.base, 3), (
        "what is not known to be heard is said again"
    )


def test_a_reply_that_was_overtaken_is_not_heard(zone: SharedStore) -> None:
    one, other = filled(zone, 1)
    assert take(one, 2 * MS)
    slow = ask(one, 30 * MS)
    again = ask(other, 600 * MS)
    assert slow is not None
    assert again is not None
    hear(one, slow, granted(50), 700 * MS)
    assert not take(one, 700 * MS), "these permits came back with the ask that overtook it"
    one.load(700 * MS)
    assert one.is_asking(700 * MS)
    one.lose(slow)
    assert one.is_asking(700 * MS)
    hear(other, again, granted(2), 701 * MS)
    assert [take(one, 702 * MS) for _ in range(3)] == [True, True, False]


def test_who_comes_second_does_it_again(zone: SharedStore) -> None:
    one, other = filled(zone, 1)
    one.load(2 * MS)
    assert one.take(1, 2 * MS)
    assert take(other, 2 * MS)
    assert not one.save(), "the permit is another's by now"
    assert not take(one, 2 * MS)


def test_a_zone_that_forgot_it_begins_under_another_name(zone: SharedStore) -> None:
    one, _ = filled(zone, 10)
    assert take(one, 2 * MS)
    before = ask(one, 600 * MS)
    assert before is not None
    zone.clear()
    hear(one, before, granted(10), 601 * MS)
    assert not take(one, 602 * MS)
    anew = ask(one, 603 * MS)
    assert anew is not None
    assert anew.node != before.node
    assert (anew.base, anew.used) == (0, 0)


def test_numbers_of_another_version_are_not_misread(zone: SharedStore) -> None:
    one, _ = filled(zone, 10)
    numbers = zone.read(LEASES, [one.hot])[0]
    assert numbers is not None
    assert zone.swap(LEASES, [(one.hot, numbers, (*numbers, 1))], SECOND)
    assert not take(one, 2 * MS)
    assert ask(one, 3 * MS) is not None


def test_a_lease_that_ended_while_the_process_stood_still_is_over(
    zone: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the clock and the look at the numbers."""
    now = 10**15
    monkeypatch.setattr(zone, "now_us", lambda: now)
    shares = Shares(share_without_registry(1, 1))
    table = ZoneLeaseTable(zone, "store", LeaseTerms(), shares, lambda: None, lambda *_: None)
    *_, claimed = [table.claim(METER, "k", b"diana:x|k", 1) for _ in range(HOT)]
    assert isinstance(claimed, LeaseClaim)
    assert claimed.lease is not None
    table.settle(claimed.lease, claimed.ask, granted(50), now)
    assert table.take(METER, "k", 1)
    change = zone.change

    def change_late(*arguments: Any) -> Any:
        nonlocal now
        now += 2 * SECOND
        return change(*arguments)

    monkeypatch.setattr(zone, "change", change_late)
    assert table.take(METER, "k", 1) is None


def policy(
    zone: str, settings: str = "", rule: str = "unit: day, rpu: 10000000, algo: W, align: first"
) -> Policy:
    return rules_from_bytes(
        f"store_budget: 10s\nlocal_store: shared://{zone}\n{settings}\n"
        f"limits: [{{url: /, rules: [{{name: all, {rule}, scope: leased}}]}}]".encode()
    )


def store_of(guard: Guard) -> RedisStore:
    store = guard._evaluator.shared
    assert isinstance(store, RedisStore)
    return store


def holders(server: Server, rules: Policy) -> set[bytes]:
    names = server.ask("HKEYS", lease_key(f"{rules.rules[0].meter.id}|=".encode()))
    return set(names) - {b""}


@pytest.fixture(autouse=True)
def patient_when_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stands still for a second hears all the same what was used."""
    monkeypatch.setattr("diana.stores.redis.leases.lease_renewer.LEAVE_SECONDS", 10.0)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(REDIS_7) as server:
        yield server


def test_to_the_pool_they_are_one_and_ask_as_seldom_as_one(server: Server) -> None:
    with zone_name() as name:
        rules = policy(name, "lease: {ttl: 60s}")
        guards = [Guard(rules, server.url) for _ in range(3)]
        passed = sum(guard.check(ANY).allowed for _ in range(5_000) for guard in guards)
        assert len(holders(server, rules)) == 1
        counts = [store_of(guard).counts() for guard in guards]
        assert sum(one["trips"] for one in counts) < 0.02 * passed
        assert min(one["leased"] for one in counts) > 4_000
        for guard in guards:
            guard.close()
        assert passed == 15_000
        assert int(server.ask("GET", f"{rules.rules[0].meter.id}|=").split(b",")[1]) == passed
        assert not holders(server, rules)


def test_several_leased_rules_ask_ahead_of_need(server: Server) -> None:
    with zone_name() as name:
        rules = rules_from_bytes(
            f"""
store_budget: 10s
local_store: shared://{name}
lease: {{ttl: 60s, start: 1%}}
defaults: {{unit: day, algo: W, align: first, scope: leased}}
limits: [{{url: /, rules: [{{name: wide, rpu: 3000000}}, {{name: narrow, rpu: 2000000}}]}}]
""".encode()
        )
        guard = Guard(rules, server.url)

        def has_asked() -> bool:
            assert all(guard.check(ANY) for _ in range(1_000))
            return store_of(guard).counts()["lease_asks"] > 2

        until(has_asked, "the thread that asks ahead has asked")
        guard.close()


def test_the_clock_of_the_store_may_be_behind(zone: SharedStore) -> None:
    one = worker(zone, 10**15)
    assert not take(one, 10**15)
    first = ask(one, 10**15)
    assert first is not None
    one.load(10**15)
    one.finish(first, granted(3), 5 * 10**14, 10**15 + MS)
    assert one.save()
    assert take(worker(zone, 10**15), 10**15 + MS)


def test_rules_of_another_store_hold_their_own_though_the_zone_is_the_same(server: Server) -> None:
    with zone_name() as name, Server(REDIS_7) as another:
        rules = policy(name, "lease: {ttl: 60s}")
        for one in (server, another):
            guard = Guard(rules, one.url)
            assert all(guard.check(ANY) for _ in range(500))
            guard.close()
            assert int(one.ask("GET", f"{rules.rules[0].meter.id}|=").split(b",")[1]) == 500


def test_a_worker_that_is_killed_while_it_asks_keeps_the_others_waiting_for_no_longer_than_the_ttl(
    server: Server,
) -> None:
    with zone_name() as name:
        rules = policy(name, "lease: {ttl: 2s}")
        with _worker(server.url, name) as process:
            zone = SharedStore(name)
            guard = Guard(rules, server.url)
            until(lambda: guard.check(ANY) and store_of(guard).counts()["leased"] > 0, "it joins")
            lease = ZoneLease(
                zone,
                store_of(guard)._where.place,
                rules.rules[0].meter,
                "=",
                f"{rules.rules[0].meter.id}|=".encode(),
                LeaseTerms(ttl_us=2 * SECOND),
                zone.now_us(),
            )
            os.kill(server.pid, signal.SIGSTOP)
            try:

                def is_asking() -> bool:
                    lease.load(zone.now_us())
                    return lease.in_flight

                until(is_asking, "an ask is under way")
                process.kill()
                process.join()
            finally:
                os.kill(server.pid, signal.SIGCONT)
            before = store_of(guard).counts()["leased"]
            until(
                lambda: guard.check(ANY) and store_of(guard).counts()["leased"] > before + 100,
                "the other has asked",
            )
            assert store_of(guard).counts()["degraded"] == 0
            guard.close()


@contextmanager
def _worker(url: str, zone: str) -> Iterator[Any]:
    """A process that takes from the lease all the time."""
    spawn = multiprocessing.get_context("spawn")
    mine, its = spawn.Pipe()
    process = spawn.Process(target=_take, args=(url, zone, its))
    process.start()
    try:
        assert mine.poll(60)
        yield process
    finally:
        process.kill()
        process.join()
        mine.close()
        its.close()


def _take(url: str, zone: str, pipe: Connection) -> None:
    guard = Guard(policy(zone, "lease: {ttl: 2s}"), url)
    while store_of(guard).counts()["leased"] < 100:
        guard.check(ANY)
    pipe.send("leased")
    while True:
        guard.check(ANY)
        time.sleep(0.000_1)
