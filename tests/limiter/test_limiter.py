"""Limiter and AsyncLimiter, as their users see them."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import diana
from diana import AsyncLimiter, ConfigError, Decision, DianaError, Limiter, LimitExceeded, limit
from diana.core.errors import CostError, KeyTypeError, ReentrancyError, TimeoutValueError
from diana.core.limit import uses_slots
from diana.runtime.entry_points import algorithms
from diana.stores.memory import MemoryStore
from diana.testing import FakeClock

TYPED = """
from collections.abc import Callable, Coroutine
from typing import Any, assert_type
from diana import AsyncLimiter, Limiter, limit

@limit("5/second")
def ring(sound: str, times: int = 1) -> str:
    return sound * times

@limit("5/second")
async def chime(sound: str) -> str:
    return sound

class Bell:
    @limit("5/second")
    def ring(self, sound: str) -> str:
        return sound

    @staticmethod
    @limit("5/second")
    def name(sound: str) -> str:
        return sound

assert_type(ring("ding", times=2), str)
chimes: Coroutine[Any, Any, str] = chime("ding")
assert_type(ring.limiter, Limiter)
assert_type(chime.limiter, AsyncLimiter)
assert_type(Bell.ring.limiter, Limiter)
assert_type(Bell().ring("ding"), str)
assert_type(Bell.name("ding"), str)
plain: Callable[[str], str] = ring
ring(1)  # type: ignore[arg-type]
Bell().ring(1)  # type: ignore[arg-type]
"""

BEGIN_US = 1_700_000_000_000_000


def spelled(number: int, code: str) -> str:
    """A limit as this algorithm counts: so many a second, or so many at once."""
    return f"{number} at once" if uses_slots(algorithms()[code]) else f"{number}/second"


def clock() -> FakeClock:
    return FakeClock(BEGIN_US)


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (lambda: Limiter("100/minute"), "Limiter('100/minute', algo='TB', store='memory://')"),
        (
            lambda: AsyncLimiter("5 per 30s; 9/day", algo="sliding window", name="mail"),
            "AsyncLimiter('5/30s; 9/day', algo='SW', store='memory://', name='mail')",
        ),
        (
            lambda: Limiter("1/hour", store=MemoryStore(), name="calls"),
            f"Limiter('1/hour', algo='TB', store={MemoryStore.__name__}, name='calls')",
        ),
        (
            lambda: Limiter(
                "1/hour", store="redis://me:hunter2@127.0.0.1:1?namespace=x", name="calls"
            ),
            "Limiter('1/hour', algo='TB', store='redis://127.0.0.1:1', name='calls')",
        ),
    ],
)
def test_a_limiter_shows_what_it_limits_and_no_password(
    made: Callable[[], Limiter], shown: str
) -> None:
    limiter = made()
    assert repr(limiter) == shown
    if isinstance(limiter, Limiter):
        limiter.close()


def test_the_version_is_that_of_the_package() -> None:
    assert diana.__version__ == version("diana-limiter")


def test_a_decision_answers_the_next_question() -> None:
    limiter = Limiter("10/second", clock=clock())
    first = limiter.take("alice")
    assert first
    assert (first.allowed, first.limit, first.remaining) == (True, 10, 9)
    assert (first.retry_after, first.reset_after, first.delay) == (0.0, 0.1, 0.0)
    assert (first.key, first.cost, first.at, first.degraded) == ("alice", 1, BEGIN_US, False)
    assert limiter.take("alice", 9)
    denied = limiter.take("alice")
    assert not denied
    assert (denied.remaining, denied.retry_after, denied.reset_after) == (0, 0.1, 1.0)


def test_a_decision_reads_as_what_it_says() -> None:
    assert repr(Limiter("10/second", clock=clock()).take("alice")) == (
        "Decision(allowed=True, limit=10, remaining=9, retry_after=0.0, reset_after=0.1, delay=0.0, "
        f"key='alice', cost=1, at={BEGIN_US})"
    )


@pytest.mark.parametrize("code", algorithms())
def test_a_cost_of_zero_passes_and_writes_nothing(code: str) -> None:
    limiter = Limiter(spelled(1, code), algo=code, clock=clock())
    before = limiter.peek("k")
    assert limiter.take("k", 0)
    assert limiter.peek("k") == before
    while limiter.take("k"):
        pass
    assert limiter.take("k", 0), "nothing costs nothing, also over the limit"
    assert not limiter.peek("k")


@pytest.mark.parametrize("cost", [-1, 1.0, 0.5, True, False, "1", None, 2**53, 10**30])
@pytest.mark.parametrize("spelling", ["5/second", "5/second; 9/minute"])
def test_a_cost_that_is_no_whole_number_is_an_error(cost: Any, spelling: str) -> None:
    limiter = Limiter(spelling, clock=clock())
    for charge in (limiter.take, limiter.wait):
        with pytest.raises(DianaError, match="write a whole number"):
            charge("k", cost)
    assert limiter.peek("k").remaining == 4


@pytest.mark.parametrize("code", algorithms())
def test_a_cost_above_what_can_ever_pass_is_denied_for_ever(code: str) -> None:
    limiter = Limiter(spelled(5, code), algo=code, clock=clock())
    for cost in (limiter.peek("k").limit + 1, 2**53 - 1):
        denied = limiter.take("k", cost)
        assert not denied
        assert denied.retry_after is None
        assert denied.never


def test_several_limits_are_all_or_nothing() -> None:
    time = clock()
    limiter = Limiter("2/second; 3/minute", algo="SL", clock=time)
    assert limiter.take("k").remaining == 1
    assert limiter.take("k").remaining == 0
    denied = limiter.take("k")
    assert (denied.allowed, denied.limit, denied.retry_after) == (False, 2, 1.0)
    time.advance(1)
    assert limiter.take("k").remaining == 0
    assert limiter.take("k").retry_after == 59.0
    assert limiter.take("k", 3).retry_after is None
    time.advance(59)
    assert limiter.take("k", 2), "the denied ones were charged to the second"


def test_peek_writes_nothing_and_reset_forgets() -> None:
    limiter = Limiter("1/day", clock=clock())
    assert limiter.peek("k")
    assert limiter.peek("k")
    assert limiter.take("k")
    assert not limiter.peek("k")
    limiter.reset("k")
    assert limiter.take("k")


@pytest.mark.parametrize("spelling", ["3/minute", "3/minute; 3/hour"])
def test_refund_takes_a_charge_back_once(spelling: str) -> None:
    limiter = Limiter(spelling, clock=clock())
    first = limiter.take("k", 2)
    limiter.refund(first)
    assert limiter.peek("k").remaining == 2
    denied = limiter.take("k", 9)
    limiter.refund(denied)
    limiter.refund(limiter.take("k", 0))
    assert limiter.peek("k").remaining == 2


@pytest.mark.parametrize(
    "arguments",
    [
        {"limit": 5},
        {"algo": 5},
        {"store": None},
        {"store": 5},
        {"store": MemoryStore},
        {"store": "memory://["},
        {"store": "memory://?max_keys=1&max_keys=2"},
        {"name": 5},
        {"name": ""},
        {"clock": 5},
        {"clock": float},  # gives 0.0
        {"limit": "100001/day", "algo": "SL"},
    ],
    ids=str,
)
def test_a_wrong_type_is_an_error_that_helps(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"write|give"):
        Limiter(**{"limit": "5/second", **arguments})


def test_a_leaky_bucket_lets_nothing_wait_for_nothing() -> None:
    limiter = Limiter("1/second", algo="LB", burst=3, clock=clock())
    limiter.take("k", 2)
    assert limiter.take("k", 0).delay == 0


def test_on_a_shared_store_a_name_is_required_and_keeps_limits_apart() -> None:
    store = MemoryStore()
    with pytest.raises(ConfigError, match="give the limit a name="):
        Limiter("1/day", store=store)
    one, other = Limiter("1/day", store=store, name="a"), Limiter("1/day", store=store, name="b")
    assert one.take("k")
    assert other.take("k")
    assert not Limiter("1/day", store=store, name="a").take("k")


def test_limiters_without_a_store_of_their_own_share_nothing() -> None:
    assert Limiter("1/day").take("k")
    assert Limiter("1/day").take("k")


def test_the_ordinary_clock_is_the_wall_clock() -> None:
    from time import time_ns

    at = Limiter("1/day").take("k").at
    assert abs(at - time_ns() // 1_000) < 60_000_000


def test_the_async_limiter_is_the_same_with_await() -> None:
    async def main() -> None:
        limiter = AsyncLimiter("2/minute", clock=clock())
        assert (await limiter.peek("k")).remaining == 1
        first = await limiter.take("k")
        assert first == Limiter("2/minute", clock=clock()).take("k")
        await limiter.refund(first)
        assert await limiter.take("k", 2)
        assert not await limiter.take("k")
        await limiter.reset("k")
        assert await limiter.take("k")
        await limiter.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("algo", "options", "passed"),
    [("W", {}, 8), ("SW", {}, 8), ("SL", {}, 8), ("TB", {"burst": 2}, 9), ("LB", {"burst": 0}, 7)],
)
def test_the_classic_experiment(algo: str, options: dict[str, Any], passed: int) -> None:
    """Two threads, 20 requests each, 200 ms apart, two per second, from a whole second on."""
    time = FakeClock(BEGIN_US)
    limiter = Limiter("2/second", algo=algo, clock=time, **options)
    count = 0
    for _ in range(20):
        count += bool(limiter.take("k")) + bool(limiter.take("k"))
        time.advance(0.2)
    assert count == passed


def test_a_subclass_may_have_a_take_of_its_own() -> None:
    class Generous(Limiter):
        def take(self, key: str, cost: int = 1) -> Decision:
            return super().take(key, 0)

    limiter = Generous("1/day", clock=clock())
    assert [bool(limiter.take("k")) for _ in range(3)] == [True, True, True]


def test_errors_survive_the_way_between_processes() -> None:
    denial = Limiter("1/day", clock=clock()).take("k", 2)
    for error in (
        LimitExceeded(denial),
        CostError(-1),
        KeyTypeError(5),
        TimeoutValueError(-1),
        ReentrancyError(),
    ):
        copied = pickle.loads(pickle.dumps(error))
        assert (type(copied), str(copied)) == (type(error), str(error))
    mistake = pickle.loads(pickle.dumps(ConfigError("wrong", line=3, column=4, path="rules")))
    assert (mistake.line, mistake.column, mistake.path) == (3, 4, "rules")


class TestDecorator:
    def test_it_raises_and_carries_the_decision(self) -> None:
        @limit("1/minute", clock=clock())
        def ring() -> str:
            """Ring the bell."""
            return "ding"

        assert ring() == "ding"
        assert ring.__doc__ == "Ring the bell."
        with pytest.raises(LimitExceeded, match="over the limit of 1: retry after 60 s") as caught:
            ring()
        assert isinstance(caught.value.decision, Decision)
        assert caught.value.decision.retry_after == 60.0

    def test_it_calls_the_fallback_with_the_same_arguments(self) -> None:
        @limit("1/minute", clock=clock(), fallback=lambda word: f"not {word}")
        def say(word: str) -> str:
            return word

        assert [say("now"), say("again")] == ["now", "not again"]

    def test_key_and_cost_may_be_functions_of_the_arguments(self) -> None:
        @limit("5/minute", clock=clock(), key=lambda who, size: who, cost=lambda who, size: size)
        def send(who: str, size: int) -> int:
            return size

        assert [send("a", 3), send("b", 5), send("a", 2)] == [3, 5, 2]
        with pytest.raises(LimitExceeded):
            send("a", 1)

    def test_on_methods(self) -> None:
        class Bell:
            def __init__(self, name: str) -> None:
                self.name = name

            @limit("1/minute", clock=clock(), key=lambda self: self.name)
            def ring(self) -> str:
                return self.name

        assert [Bell("a").ring(), Bell("b").ring()] == ["a", "b"]
        with pytest.raises(LimitExceeded):
            Bell("a").ring()

    def test_with_a_timeout_it_waits_first(self) -> None:
        time = clock()

        @limit("1/minute", clock=time, timeout=60)
        def ring() -> int:
            return time()

        assert [ring(), ring()] == [BEGIN_US, BEGIN_US + 60_000_000]

        @limit("1/minute", clock=time, timeout=59)
        def knock() -> int:
            return time()

        now = knock()
        with pytest.raises(LimitExceeded):
            knock()
        assert time() == now, "it slept though it could not pass"

    def test_a_leaky_bucket_is_queued_for_without_a_timeout(self) -> None:
        time = clock()

        @limit("10/second", algo="LB", burst=1, clock=time)
        def ring() -> int:
            return time()

        assert [ring(), ring()] == [BEGIN_US, BEGIN_US + 100_000]

    def test_on_coroutines(self) -> None:
        time = clock()

        async def later(word: str) -> str:
            return f"later {word}"

        @limit("1/minute", clock=time, fallback=later)
        async def say(word: str) -> str:
            return word

        @limit("1/minute", clock=time, timeout=60)
        async def ring() -> int:
            return time()

        @limit("1/minute", clock=time)
        async def knock() -> str:
            return "knock"

        async def main() -> None:
            assert [await say("now"), await say("again")] == ["now", "later again"]
            assert [await ring(), await ring()] == [BEGIN_US, BEGIN_US + 60_000_000]
            assert await knock() == "knock"
            with pytest.raises(LimitExceeded):
                await knock()

        asyncio.run(main())

    def test_its_counter_is_named_after_the_function(self) -> None:
        store = MemoryStore()

        def make() -> Any:
            @limit("1/minute", clock=clock(), store=store)
            def ring() -> str:
                return "ding"

            return ring

        assert make()() == "ding"
        with pytest.raises(LimitExceeded):
            make()()

    def test_its_limiter_is_at_hand(self) -> None:
        @limit("1/minute", clock=clock())
        def ring() -> str:
            return "ding"

        ring()
        ring.limiter.reset("")
        assert ring() == "ding"

    def test_a_strict_type_checker_knows_the_limiter_and_the_function(self, tmp_path: Path) -> None:
        page = tmp_path / "typed.py"
        page.write_text(TYPED)
        checked = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--config-file=", str(page)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "MYPYPATH": str(Path(__file__).parents[2] / "src")},
        )
        assert checked.stdout.startswith("Success"), checked.stdout

    def test_what_has_no_name_needs_one(self) -> None:
        with pytest.raises(ConfigError, match="give the limit a name="):
            limit("1/minute")(partial(print, "ding"))
        limit("1/minute", name="ding")(partial(str, "ding"))

    def test_on_static_and_class_methods_in_either_order(self) -> None:
        class Bell:
            @limit("1/minute", clock=clock())
            @staticmethod
            def ring(sound: str) -> str:
                return sound

            @limit("1/minute", clock=clock())
            @classmethod
            def name(cls) -> str:
                return cls.__name__

        # Type checkers look through @staticmethod and @classmethod when they stand below; above @limit they understand them.
        bell: Any = Bell
        assert bell().ring("ding") == "ding"
        assert bell.name() == "Bell"
        for call in (lambda: bell.ring("ding"), bell().name):
            with pytest.raises(LimitExceeded):
                call()

    def test_on_objects_whose_call_is_a_coroutine(self) -> None:
        class Bell:
            async def __call__(self) -> str:
                return "ding"

        ring: Any = limit("1/minute", clock=clock(), name="bell")(Bell())
        assert asyncio.run(ring()) == "ding"

    @pytest.mark.parametrize(
        "arguments", [{"timeout": -1}, {"key": 5}, {"cost": 1.5}, {"fallback": "sorry"}], ids=str
    )
    def test_a_wrong_argument_is_an_error_at_once(self, arguments: dict[str, Any]) -> None:
        with pytest.raises(DianaError, match=r"write|give"):
            limit("1/minute", **arguments)

    def test_without_parentheses_it_says_what_to_write(self) -> None:
        with pytest.raises(ConfigError, match=r'write @limit\("100/minute"\)'):
            limit(print)  # type: ignore[arg-type]

    def test_an_async_generator_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="async generator"):

            @limit("1/minute")
            async def numbers() -> Any:
                yield 1


def test_hold_takes_or_raises() -> None:
    clock = FakeClock()
    limiter = Limiter("2/minute", clock=clock)
    with limiter.require("alice") as decision:
        assert (decision.allowed, decision.remaining) == (True, 1)
    with pytest.raises(RuntimeError), limiter.require("alice"):  # the caller's own, and charged
        raise RuntimeError
    reached = []
    with pytest.raises(LimitExceeded) as error, limiter.require("alice"):
        reached.append("alice")
    assert error.value.decision.retry_after == 30.0
    assert not reached
    with limiter.require("bob", cost=2):
        pass
    with pytest.raises(LimitExceeded), limiter.require("alice", timeout=29):
        reached.append("alice")
    with limiter.require("alice", timeout=30) as decision:
        assert decision
    assert (clock(), reached) == (30_000_000, [])


def test_hold_waits_out_a_leaky_bucket_s_delay() -> None:
    clock = FakeClock()
    limiter = Limiter("1/second", algo="LB", max_wait="2s", clock=clock)
    for _ in range(3):
        with limiter.require("alice"):
            pass
    assert clock() == 2_000_000


def test_hold_in_coroutines() -> None:
    async def main() -> list[bool]:
        limiter = AsyncLimiter("1/minute", clock=FakeClock())
        passed = []
        for _ in range(2):
            try:
                async with limiter.require("alice") as decision:
                    passed.append(decision.allowed)
            except LimitExceeded as error:
                passed.append(error.decision.allowed)
        async with limiter.require("alice", timeout=60) as decision:
            passed.append(decision.allowed)
        return passed

    assert asyncio.run(main()) == [True, False, True]
