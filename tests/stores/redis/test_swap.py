"""An algorithm without Lua decides globally exactly as it does locally: by compare and swap."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diana.core.charge import Charge
from diana.core.contracts import Numbers
from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.limit import Limit
from diana.stores.memory import MemoryStore
from diana.stores.redis.protocol.scripts import scripts, wire_limit
from tests.servers.cluster import Cluster
from tests.servers.server import Server
from tests.stores.redis.counting import BEGIN_US, PATIENT_US, SECOND_US, meter, opened
from tests.stores.redis.pushing import HOMEMADE, Homemade, narrow

STEPS = st.tuples(
    st.integers(-3 * SECOND_US, 40 * SECOND_US), st.integers(0, 4), st.sampled_from("ab")
)


@pytest.mark.parametrize("shell", ["threads", "tasks"])
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside one in Lua"])
@pytest.mark.parametrize("code", HOMEMADE)
def test_random_histories(shell: str, beside: bool, code: str, any_server: Server) -> None:
    memory = MemoryStore()
    runs = iter(range(10**9))
    with opened(any_server.url) as store, asyncio.Runner() as runner:

        @settings(
            max_examples=30,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.lists(st.sampled_from([1, 3, 7]), min_size=1, max_size=2), st.lists(STEPS))
        def same(edits: list[int], history: list[tuple[int, int, str]]) -> None:
            name = f"swap {code} {shell} {beside} {next(runs)}"
            now = BEGIN_US
            for step, (gap, cost, key) in enumerate(history):
                now += gap
                some = narrow(name, code, edits[step * len(edits) // len(history)])
                charges = [Charge(some, key, cost)]
                if beside:
                    charges.append(Charge(meter(name, "SL", 5), key, cost))
                if shell == "threads":
                    found = store.decide(charges, now)
                else:
                    found = runner.run(store.asynchronous.decide(charges, now))
                wanted = memory.decide(charges, now)
                assert found == wanted

        same()


@pytest.mark.parametrize("code", [*HOMEMADE, "SL"])
def test_peek_refund_and_reset(code: str, redis7: Server) -> None:
    some = narrow("verbs", code, 3)
    with opened(redis7.url) as store:
        charge = [Charge(some, "k", 2)]
        assert store.decide(charge, BEGIN_US)[0].remaining == 1
        assert store.peek([Charge(some, "k")], BEGIN_US)[0].remaining == 0
        assert store.peek([Charge(some, "k")], BEGIN_US)[0].remaining == 0, "a look was charged"
        store.refund(charge, BEGIN_US, BEGIN_US)
        assert store.peek([Charge(some, "k", 0)], BEGIN_US)[0].remaining == 3
        store.decide(charge, BEGIN_US)
        store.reset(some, "k")
        assert store.peek([Charge(some, "k", 0)], BEGIN_US)[0].remaining == 3


def test_a_long_log_without_lua_travels_whole_and_is_whole_afterwards(any_server: Server) -> None:
    """Written by compare and swap, it is what the script reads and writes too."""
    plain, in_lua = narrow("whole", "HL", 5_000), narrow("whole", "SL", 5_000)
    key = "diana:whole|HL|minute|k"
    memory = MemoryStore()
    with opened(any_server.url, budget_us=PATIENT_US) as store:
        for number in range(600):
            charges = [Charge(plain, "k", 1 + number % 3)]
            now = BEGIN_US + number * 1_000
            assert store.decide(charges, now) == memory.decide(charges, now)
        for at in (BEGIN_US, BEGIN_US + 255_000, BEGIN_US + 300_000):
            store.refund([Charge(plain, "k")], at, now)
            memory.refund([Charge(plain, "k")], at, now)
        text, sha = wire_limit(in_lua), scripts()["acquire"].sha
        any_server.ask("SCRIPT", "LOAD", scripts()["acquire"].text)
        for cost in (0, 1, 4_500):
            (wanted,) = memory.peek([Charge(plain, "k", cost)], now)
            _, said = any_server.ask("EVALSHA", sha, 1, key, now, "", "look", 1, text, cost)
            assert (said[1] == 1, *said[2:6]) == wanted.outcome


def test_a_counter_that_never_rests_hurts_only_its_own_request(redis7: Server) -> None:
    """Whoever is always too late is counted for here; the server is well."""

    class Disturbed(Homemade):
        def decide(self, state: Numbers | None, params: Any, cost: int, now: int) -> Any:
            if cost:
                redis7.ask("SET", "diana:disturbed|HM|minute|k", f"{now},{next(numbers)}")
            return Homemade.decide(state, params, cost, now)

    numbers = iter(range(1, 10**9))
    limit = Limit(10**9, 60 * SECOND_US)
    some: CounterSpec = meter_from_limit("diana:disturbed", limit, Disturbed(), {})
    with opened(redis7.url, budget_us=3_000_000) as store:
        assert not store.decide([Charge(meter("well"), "k")], BEGIN_US)[0].degraded
        assert store.decide([Charge(some, "k")], BEGIN_US)[0].degraded
        assert not store.lost
        assert not store.decide([Charge(meter("well"), "k")], BEGIN_US)[0].degraded
        assert store.counts()["breaker_opened"] == 0


@pytest.mark.parametrize("code", ["HM", "TB"])
def test_a_slot_that_moves_is_followed(code: str, cluster: Cluster) -> None:
    some = narrow("moving", code)
    slot = cluster.slot_of_key(f"diana:moving|{code}|minute|k")
    source = cluster.node_of_slot(slot)
    other = next(node for node in cluster.masters() if node is not source)
    with opened(cluster.url) as store:
        charge = [Charge(some, "k")]
        assert store.decide(charge, BEGIN_US)[0].remaining == 39
        cluster.begin_move(slot, other)
        cluster.carry_keys(slot)
        assert store.decide(charge, BEGIN_US)[0].remaining == 38, "ASK is not followed"
        store.refund(charge, BEGIN_US, BEGIN_US)
        assert store.peek([Charge(some, "k", 0)], BEGIN_US)[0].remaining == 39
        cluster.finish_move(slot)
        (decision,) = store.decide(charge, BEGIN_US)
        assert (decision.remaining, decision.degraded) == (38, False), "MOVED is not followed"
        store.reset(some, "k")
        assert store.peek([Charge(some, "k", 0)], BEGIN_US)[0].remaining == 40
