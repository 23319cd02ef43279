"""`scope: leased`: permits in batches from the fleet's pool."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pytest

from diana import AsyncGuard, ConfigError, Guard, Request, Verdict
from diana.core.policy import Policy
from diana.rules.loading import rules_from_bytes
from diana.stores.redis.leases.lease_request import lease_key
from diana.stores.redis.maintenance.heartbeat import nodes_of_store
from diana.stores.redis.store import RedisStore
from diana.testing import FakeClock
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.redis.counting import opened

ANY = Request("GET", "/")
DAY = "unit: day, rpu: 10000000, algo: W, align: first"
"""Fast enough to be leased, and over before nothing."""


PATIENT = "store_budget: 10s\nlease: {ttl: 60s}"
"""A process that stands still for a second or two loses no lease."""


def policy(rule: str = DAY, settings: str = PATIENT, scope: str = "leased") -> Policy:
    text = f"{settings}\nlimits: [{{url: /, rules: [{{name: all, {rule}, scope: {scope}}}]}}]"
    return rules_from_bytes(text.encode())


@contextmanager
def guarded(server: Server, rules: Policy | None = None, **options: Any) -> Iterator[Guard]:
    guard = Guard(rules or policy(), server.url, **options)
    try:
        yield guard
    finally:
        guard.close()


def store_of(guard: Guard) -> RedisStore:
    store = guard._evaluator.shared
    assert isinstance(store, RedisStore)
    return store


def heat(guard: Guard, request: Request = ANY) -> None:
    """Ask until it is decided here."""

    def is_leased() -> bool:
        guard.check(request)
        return store_of(guard).counts()["leased"] > 0

    until(is_leased, "the counter is hot")


def used(server: Server, rules: Policy) -> int:
    """What the pool has counted, held permits not included."""
    key = f"{rules.rules[0].meter.id}|="
    said = server.ask("GET", key)
    return 0 if said is None else int(said.split(b",")[1])


def held(server: Server, rules: Policy) -> int:
    said = server.ask("HGET", lease_key(f"{rules.rules[0].meter.id}|=".encode()), "")
    return 0 if said is None else int(said.split(b",")[0])


@pytest.fixture(autouse=True)
def empty(redis7: Server) -> None:
    redis7.ask("FLUSHALL")


@pytest.fixture(autouse=True)
def patient_when_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stands still for a second hears all the same what was used."""
    monkeypatch.setattr("diana.stores.redis.leases.lease_renewer.LEAVE_SECONDS", 10.0)


def test_a_hot_counter_is_decided_without_a_trip(redis7: Server) -> None:
    with guarded(redis7, policy("unit: second, rpu: 1000000, algo: W")) as guard:
        heat(guard)
        for _ in range(20_000):
            assert guard.check(ANY)
        counts = store_of(guard).counts()
    assert counts["decisions"] >= 20_000
    assert counts["trips"] / counts["decisions"] < 0.02
    assert counts["degraded"] == 0


def test_all_that_was_let_pass_is_counted_when_a_node_ends(redis7: Server) -> None:
    rules = policy()
    with guarded(redis7, rules) as guard:
        heat(guard)
        passed = 5_000 + store_of(guard).counts()["decisions"]
        for _ in range(5_000):
            assert guard.check(ANY)
    assert (used(redis7, rules), held(redis7, rules)) == (passed, 0)


def test_a_cold_counter_asks_the_store_each_time(redis7: Server) -> None:
    rules = policy("actor: header X-Id, unit: day, rpu: 10000000, algo: W, align: first")
    with guarded(redis7, rules) as guard:
        for number in range(100):
            assert guard.check(Request("GET", "/", [("X-Id", str(number))]))
        counts = store_of(guard).counts()
    assert (counts["leased"], counts["trips"]) == (0, 100)


def test_a_slow_limit_is_exact_without_leases(redis7: Server) -> None:
    with (
        guarded(redis7, policy("unit: day, rpu: 50, algo: W, align: first")) as one,
        guarded(redis7, policy("unit: day, rpu: 50, algo: W, align: first")) as other,
    ):
        passed = sum(guard.check(ANY).allowed for _ in range(40) for guard in (one, other))
        assert store_of(one).counts()["leased"] == 0
    assert passed == 50


def test_with_a_clock_that_is_given_it_is_exact(redis7: Server) -> None:
    clock = FakeClock(1_700_000_000_000_000)
    with guarded(redis7, policy("unit: second, rpu: 1000, algo: SW"), clock=clock) as guard:
        assert sum(guard.check(ANY).allowed for _ in range(1_200)) == 1_000
        clock.advance(1.1)
        assert guard.check(ANY)


def test_two_nodes_never_pass_more_than_the_limit(redis7: Server) -> None:
    rules = policy("unit: second, rpu: 3000, algo: TB")
    with guarded(redis7, rules) as one, guarded(redis7, rules) as other:
        heat(one)
        heat(other)
        begin = time.monotonic()
        passed = 0
        while passed < 4_000:
            passed += one.check(ANY).allowed + other.check(ANY).allowed
            assert passed <= 3_000 + 1 + (time.monotonic() - begin) * 3_000


def test_a_denial_by_another_rule_returns_the_permit(redis7: Server) -> None:
    rules = rules_from_bytes(
        f"{PATIENT}\nlimits:\n- {{url: /, rules: [{{name: all, {DAY}, scope: leased}}]}}\n"
        "- {url: /a, rules: [{unit: day, rpu: 3, algo: W, align: first, scope: global, name: few}]}".encode()
    )
    with guarded(redis7, rules) as guard:
        heat(guard)
        passed = store_of(guard).counts()["decisions"]
        denied = Request("GET", "/a")
        verdicts = [guard.check(denied) for _ in range(500)]
        assert sum(map(bool, verdicts)) == 3
        assert verdicts[-1].denied_by is not None
        assert verdicts[-1].denied_by.name == "few"
    key = f"{next(rule for rule in rules.rules if rule.name == 'all').meter.id}|="
    counted = int(redis7.ask("GET", key).split(b",")[1])
    # Reported before it was given back: then the pool took it back. Decisions of the other store are counted beside them.
    assert counted <= passed + 3


def test_a_denial_that_is_remembered_says_nothing_of_another_cost(redis7: Server) -> None:
    (rule,) = policy("unit: hour, rpu: 1000000").rules
    with opened(redis7.url) as store:
        used_up = [(rule.meter, rule.key_of(ANY) or "", 1_000_000)]
        assert store.leased.decide(used_up)[0]
        (few,) = store.leased.decide([(*used_up[0][:2], 100_000)])
        (many,) = store.leased.decide([(*used_up[0][:2], 900_000)])
    assert few.retry_after == pytest.approx(360, abs=30)
    assert many.retry_after == pytest.approx(3_240, abs=30)


def test_a_refund_goes_back_to_where_it_was_taken(redis7: Server) -> None:
    rules = policy()
    with guarded(redis7, rules) as guard:
        heat(guard)
        passed = store_of(guard).counts()["decisions"]
        verdicts = [guard.check(ANY) for _ in range(300)]
        for verdict in verdicts[:200]:
            guard.refund(verdict)
    assert used(redis7, rules) == passed + 100


SHORT = "store_budget: 10s\nlease: {ttl: 3s}"
"""A lease that ends while a test waits, but not while a process stands still."""


def test_a_node_that_is_killed_holds_nothing_after_the_lease(redis7: Server) -> None:
    rules = policy(settings=SHORT)
    with _process(redis7.url) as (process, pipe):
        assert pipe.recv() == "leased"
        until(lambda: held(redis7, rules) > 0, "it holds something")
        process.kill()
        process.join()
    left = held(redis7, rules)
    assert left > 0
    with guarded(redis7, rules) as guard:
        until(
            lambda: guard.check(ANY) and not _leased_by_others(redis7, rules, guard),
            "what it held is swept",
        )
        assert used(redis7, rules) >= left, "and counts as used"


def _leased_by_others(server: Server, rules: Policy, guard: Guard) -> bool:
    nodes = server.ask("HKEYS", lease_key(f"{rules.rules[0].meter.id}|=".encode()))
    mine = store_of(guard)._leases.table.node.encode()
    return bool(set(nodes) - {b"", mine})


@contextmanager
def _process(url: str) -> Iterator[tuple[Any, Connection]]:
    spawn = multiprocessing.get_context("spawn")
    mine, its = spawn.Pipe()
    process = spawn.Process(target=_lease_and_wait, args=(url, its))
    process.start()
    try:
        assert mine.poll(60)
        yield process, mine
    finally:
        process.kill()
        process.join()
        mine.close()
        its.close()


def _lease_and_wait(url: str, pipe: Connection) -> None:
    rules = policy(settings=SHORT)
    guard = Guard(rules, url)
    heat(guard)
    pipe.send("leased")
    while True:
        guard.check(ANY)
        time.sleep(0.001)


def until_degraded(guard: Guard) -> Verdict:
    """The first that is: a grant that was under way may still make the next one another."""
    verdicts: list[Verdict] = []

    def is_degraded() -> bool:
        verdicts.append(guard.check(ANY))
        return verdicts[-1].decisions[0].degraded

    until(is_degraded, "the lease is over")
    return verdicts[-1]


@pytest.mark.parametrize(
    ("when_down", "passes"), [("closed", False), ("open", True), ("local", True)]
)
def test_without_the_store_each_rule_does_as_it_says(when_down: str, passes: bool) -> None:
    with Server(REDIS_7) as server:
        rules = policy(f"{DAY}, when_down: {when_down}", "store_budget: 50ms")
        with guarded(server, rules) as guard:
            heat(guard)
            server.kill()
            assert until_degraded(guard).allowed == passes


def test_a_frozen_store_holds_up_nobody_whose_permits_are_here() -> None:
    with Server(REDIS_7) as server:
        rules = policy(settings="store_budget: 50ms\nlease: {start: 100%, ttl: 60s}")
        with guarded(server, rules) as guard:
            heat(guard)
            os.kill(server.pid, signal.SIGSTOP)
            try:
                for _ in range(1_000):
                    verdict = guard.check(ANY)
                    assert verdict
                    assert not verdict.decisions[0].degraded
            finally:
                os.kill(server.pid, signal.SIGCONT)


def test_a_frozen_store_is_a_lost_one_when_the_permits_are_over() -> None:
    with Server(REDIS_7) as server:
        rules = policy(f"{DAY}, when_down: closed", "store_budget: 50ms\nlease: {ttl: 200ms}")
        with guarded(server, rules) as guard:
            heat(guard)
            os.kill(server.pid, signal.SIGSTOP)
            try:
                assert not until_degraded(guard)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            until(lambda: guard.check(ANY), "it is back")


def test_an_edit_keeps_what_was_counted(redis7: Server) -> None:
    rules = policy("unit: day, rpu: 4000000, algo: W, align: first")
    other = policy("unit: day, rpu: 8000000, algo: W, align: first")
    with guarded(redis7, rules) as guard:
        heat(guard)
        for _ in range(1_000):
            guard.check(ANY)
        guard._evaluator.swap(other)
        for _ in range(1_000):
            assert guard.check(ANY)
        passed = store_of(guard).counts()["decisions"]
    assert used(redis7, other) == passed


def test_from_an_event_loop(redis7: Server) -> None:
    rules = policy()

    async def ask() -> int:
        guard = AsyncGuard(rules, redis7.url)
        try:
            passed = 0
            for _ in range(60):
                verdicts = await asyncio.gather(*(guard.check(ANY) for _ in range(50)))
                passed += sum(map(bool, verdicts))
            await guard.refund(verdicts[0])
            return passed - 1
        finally:
            await guard.close()

    assert asyncio.run(ask()) == used(redis7, rules) == 2_999


def test_what_a_node_holds_and_uses_is_seen(redis7: Server) -> None:
    with guarded(redis7) as guard:
        heat(guard)

        def is_told() -> bool:
            guard.check(ANY)
            nodes = nodes_of_store(redis7.url)  # none before its first heartbeat
            return [node.leased for node in nodes] == [1] and min(nodes[0].held, nodes[0].used) > 0

        until(is_told, "a heartbeat has told it")


def test_several_leased_rules_are_all_or_nothing(redis7: Server) -> None:
    rules = rules_from_bytes(
        f"{PATIENT}\nlimits: [{{url: /, rules: [{{name: wide, {DAY}, scope: leased}}, "
        "{name: narrow, unit: day, rpu: 2000000, burst: 500, scope: leased}]}]".encode()
    )
    with guarded(redis7, rules) as guard:
        verdicts = [guard.check(ANY) for _ in range(3_000)]
        passed = sum(map(bool, verdicts))
        assert 500 <= passed < 3_000
    wide = next(rule for rule in rules.rules if rule.name == "wide")
    assert int(redis7.ask("GET", f"{wide.meter.id}|=").split(b",")[1]) == passed


FORKING = """
import os, sys
from diana import Guard, Request
from diana.stores.redis.leases import lease_renewer as refiller
from tests.engine.test_leased_scope import ANY, heat, policy, store_of
refiller.LEAVE_SECONDS = 10.0
guard = Guard(policy(), sys.argv[1])
heat(guard)
pid = os.fork()
passed = sum(guard.check(ANY).allowed for _ in range(2_000))
assert passed == 2_000
told = store_of(guard).counts()["decisions"]
guard.close()
if pid:
    assert os.waitpid(pid, 0)[1] == 0
print(told, flush=True)
"""


def test_a_forked_child_has_leases_of_its_own(redis7: Server) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, redis7.url], capture_output=True, text=True, check=True
    )
    child, parent = map(int, done.stdout.split())
    heated = parent - 2_000
    assert child - heated == 2_000
    assert used(redis7, policy()) == heated + 4_000


def test_in_the_shadow_it_is_counted_and_denies_nobody(redis7: Server) -> None:
    rules = policy("unit: day, rpu: 10, algo: W, align: first, mode: shadow")
    with guarded(redis7, rules) as guard:
        assert all(guard.check(ANY) for _ in range(20))


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("unit: second, rpu: 5, algo: LB", "leaky bucket (LB) cannot be leased: it releases requests at a steady rate"),
        ("unit: second, rpu: 5, algo: SL", "sliding log (SL) cannot be leased: it counts each request at its own moment"),
    ],
)  # fmt: skip
def test_algorithms_that_cannot_be_leased_are_refused(rule: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy(rule)
    assert said in str(caught.value)
    assert caught.value.path == "limits[0].rules[0].scope"


@pytest.mark.parametrize(
    ("lease", "said"),
    [
        ("{start: 0%}", "write from 1% to 100%"),
        ("{start: 101%}", "write from 1% to 100%"),
        ("{start: lots}", "write from 1% to 100%"),
        ("{ttl: 50ms}", "write from 100ms to 60s"),
        ("{ttl: 2m}", "write from 100ms to 60s"),
        ("{tll: 1s}", "did you mean ttl?"),
        ("1s", "where lease should be"),
    ],
)
def test_lease_is_read_strictly(lease: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        policy(settings=f"lease: {lease}")


def test_lease_is_read() -> None:
    assert policy(settings="lease: {start: 25%, ttl: 500ms}").settings.lease == (25, 500_000)
    assert policy(settings="").settings.lease == (10, 1_000_000)


def test_without_a_store_it_counts_here_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    rules = policy("unit: day, rpu: 10, algo: W, align: first")
    assert [warning.message for warning in rules.warnings] == [
        "scope is leased but no store is set, so it counts on this machine only; write store: URL"
    ]
    guard = Guard(rules)
    assert sum(guard.check(ANY).allowed for _ in range(20)) == 10
    assert "rules of scope leased count on this machine only" in caplog.text


def by_id(value: str) -> Request:
    return Request("GET", "/", [("X-Id", value)])


def test_an_override_of_one_key_gives_no_other_key_more(redis7: Server) -> None:
    rule = "actor: header X-Id, unit: day, rpu: 1728000, algo: W, align: first, overrides: {vip: {rpu: 172800000}}"
    with guarded(redis7, policy(rule)) as guard:
        heat(guard, by_id("other"))
        assert guard.check(by_id("vip")).decisions[0].limit == 172_800_000
        guard.check(by_id("other"))
        (lease,) = store_of(guard).lease_table._all()
        assert lease.meter.limit.rpu == 1_728_000


def test_an_edit_that_is_undone_is_undone_for_leases_too(redis7: Server) -> None:
    few, many = (
        policy("unit: day, rpu: 1728000, algo: W, align: first"),
        policy("unit: day, rpu: 9000000, algo: W, align: first"),
    )
    with guarded(redis7, few) as guard:
        heat(guard)
        for rules in (many, few):
            guard._evaluator.swap(rules)
            guard.check(ANY)
            (lease,) = store_of(guard).lease_table._all()
            assert lease.meter is rules.rules[0].meter


def test_a_cancelled_request_leaves_a_lease_that_goes_on(redis7: Server) -> None:
    async def ask() -> None:
        guard = AsyncGuard(policy(), redis7.url)
        try:
            for _ in range(200):
                task = asyncio.create_task(guard.check(ANY))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait({task})
            store = guard._evaluator.shared
            assert isinstance(store, RedisStore)
            deadline = time.monotonic() + 20
            while not store.counts()["leased"]:
                assert time.monotonic() < deadline, "no permit came"
                await guard.check(ANY)
        finally:
            await guard.close()

    asyncio.run(ask())


def test_a_cost_above_the_limit_is_never_to_be_had(redis7: Server) -> None:
    rules = policy("unit: day, rpu: 1728000, algo: W, align: first")
    meter = rules.rules[0].meter
    with guarded(redis7, rules) as guard:
        leased = guard._evaluator.leased
        heat(guard)
        while leased.decide([(meter, "=", 1_000)])[0]:
            pass
        while leased.decide([(meter, "=", 1)])[0]:
            pass
        assert leased.decide([(meter, "=", 1)])[0].retry_after
        denied = leased.decide([(meter, "=", 1_728_001)])[0]
        assert (denied.never, denied.retry_after) == (True, None)
