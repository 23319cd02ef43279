"""Requests under load: which share is rejected, who passes throughout, and that nobody is charged for it."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from random import Random
from time import monotonic
from typing import Any

import pytest

from diana import AsyncGuard, Guard, Request, Verdict
from diana.core.shed_settings import Activity, Level, Sample
from diana.shedding import load_shedder as shedding_module
from diana.shedding.gauge import Gauge, GaugeState
from diana.shedding.load_shedder import Shedding
from diana.shedding.sampling import RETRY_SECONDS
from tests.servers.waiting import until
from tests.shedding.lines import CPU_LEVELS, Dial, at_level, line, policy, state

ANY = Request(path="/")
HIGH = Request(path="/", headers={"X-Priority": "high"})
REQUESTS = 10_000


def share_of(verdicts: list[Verdict]) -> float:
    return 100 * sum(not verdict for verdict in verdicts) / len(verdicts)


@pytest.mark.parametrize(
    ("value", "level", "reject"), [(79.0, 0, 0), (80.0, 1, 10), (92.0, 2, 30), (99.0, 3, 70)]
)
def test_the_rejected_share_is_the_configured_one(value: float, level: int, reject: int) -> None:
    guard = Guard(policy(line(Dial(value))))
    until(lambda: state(guard).smoothed == value, "it is measured")
    assert state(guard).level == level
    share = share_of([guard.check(ANY) for _ in range(REQUESTS)])
    assert abs(share - reject) <= 2
    guard.close()


def test_ten_thousand_tasks_at_once() -> None:
    async def ask() -> float:
        guard = AsyncGuard(policy(line(Dial(92.0))))
        await guard.check(ANY)
        while not guard.factors[0].level:
            await asyncio.sleep(0.005)
        share = share_of(await asyncio.gather(*(guard.check(ANY) for _ in range(REQUESTS))))
        await guard.close()
        return share

    assert abs(asyncio.run(ask()) - 30) <= 2


def test_threads() -> None:
    guard = Guard(policy(line(Dial(92.0))))
    at_level(guard, 2)
    verdicts: list[Verdict] = []
    threads = [
        threading.Thread(target=lambda: verdicts.extend(guard.check(ANY) for _ in range(1_250)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(verdicts) == REQUESTS
    assert abs(share_of(verdicts) - 30) <= 2
    guard.close()


def test_health_checks_and_the_marked_priority_pass_throughout() -> None:
    spared = b"except: [/healthz], last: {header X-Priority: [high]}"
    guard = Guard(policy(line(Dial(92.0), like=spared)))
    at_level(guard, 2)
    chance, verdicts = Random(1), list[Verdict]()
    for _ in range(REQUESTS):
        verdicts.append(guard.check(HIGH if chance.random() < 0.2 else ANY))
        assert guard.check(Request(path="/healthz"))
        assert guard.check(Request(path="/healthz/db"))
    assert all(verdict for verdict in verdicts if verdict.request is HIGH)
    assert abs(share_of(verdicts) - 30) <= 2, "of all that may be shed, others pay for the spared"
    guard.close()


def test_when_nothing_else_is_left_the_marked_priority_is_shed_too() -> None:
    guard = Guard(policy(line(Dial(96.0), like=b"last: {header X-Priority: [high]}")))
    at_level(guard, 3)
    verdicts = [guard.check(HIGH) for _ in range(REQUESTS)]
    assert abs(share_of(verdicts) - 70) <= 2
    guard.close()


@pytest.mark.parametrize(
    ("path", "passes"),
    [
        ("/healthz", True), ("/healthz/", True), ("/%68ealthz", True), ("/healthz/..", False), ("/healthzz", False),
        ("/healthz/../orders", False), ("/healthz/..%2forders", False), ("/healthz\\..\\orders", False), ("/orders/../healthz", False),
        ("/" + "%2e%2e/" * 3_000 + "healthz", False),
    ],
)  # fmt: skip
def test_what_is_excepted_is_so_in_all_readings_of_the_path(path: str, passes: bool) -> None:
    everything = (Level(1, 100),)
    guard = Guard(policy(line(Dial(50.0), everything, like=b"except: [/healthz]")))
    at_level(guard, 1)
    assert guard.check(Request(path=path)).allowed is passes
    guard.close()


def test_what_is_excepted_behind_a_mount() -> None:
    rules = b"mounts: [/api]\nlimits: [{url: /, rules: [{unit: hour, rpu: 9}]}]"
    guard = Guard(
        policy(line(Dial(50.0), (Level(1, 100),), like=b"except: [/healthz]"), rules=rules)
    )
    at_level(guard, 1)
    assert not guard.check(Request(path="/api/healthz")), "one of its readings is not"
    assert not guard.check(Request(path="/apihealthz"))
    guard.close()


def test_the_worst_factor_counts_and_the_next_one_where_it_makes_an_exception() -> None:
    worst, other = Dial(99.0), Dial(85.0)
    lines = (
        line(other, name="other", like=b"except: [/static]"),
        line(worst, name="worst", like=b"except: [/healthz]"),
    )
    guard = Guard(policy(*lines))
    at_level(guard, 3, "worst")

    def ask(path: str) -> tuple[Any, set[str]]:
        verdicts = [guard.check(Request(path=path)) for _ in range(2_000)]
        return share_of(verdicts), {verdict.shed.factor for verdict in verdicts if verdict.shed}

    assert ask("/") == (pytest.approx(70, abs=2), {"worst"})
    assert ask("/static") == (pytest.approx(70, abs=2), {"worst"})
    assert ask("/healthz") == (pytest.approx(10, abs=2), {"other"})
    worst.value = None
    at_level(guard, 0, "worst")
    assert ask("/") == (pytest.approx(10, abs=2), {"other"})
    assert ask("/static") == (0, set())
    guard.close()


def test_a_request_that_is_shed_is_charged_to_no_rule_and_says_why() -> None:
    rules = b"limits: [{url: /, rules: [{name: all, unit: hour, rpu: 5}]}]"
    guard = Guard(policy(line(Dial(50.0), (Level(40, 100),)), rules=rules))
    at_level(guard, 1)
    for _ in range(20):
        verdict = guard.check(ANY)
        assert not verdict.allowed
        assert (verdict.denied_by, verdict.denial, verdict.decisions) == (None, None, ())
        assert verdict.shed is not None
        assert verdict.shed[:5] == ("dial", 1, 50.0, 40, 100)
        assert 1 <= verdict.shed.retry_after <= 5
    assert guard.peek(ANY).decisions[0].remaining == 4, "nothing was charged; a peek looks at one"
    assert verdict.explain().splitlines()[-1] == (
        "╰─▶ shed by dial at 50: from 40 on, 100 % are rejected; charged to none"
    )
    guard.refund(verdict)
    guard.settle(verdict, status=500)
    guard.close()


def test_a_factor_that_fails_sheds_nothing_and_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Dial):
        broken = True

        def __call__(self) -> float | None:
            if self.broken:
                raise OSError("no such meter")
            return super().__call__()

    broken, fine = Broken(99.0), Dial(99.0)
    guard = Guard(policy(line(broken, name="broken"), line(fine, name="fine")))
    with caplog.at_level(logging.WARNING, "diana"):
        at_level(guard, 3, "fine")
        until(lambda: state(guard, "broken").problem, "the failure is seen")
        assert state(guard, "broken").problem == "OSError: no such meter"
        broken.broken = False
        at_level(guard, 3, "broken")
        assert state(guard, "broken").problem is None
    said = [record.getMessage() for record in caplog.records if "broken" in record.getMessage()]
    assert said == [
        "shedding factor broken cannot be measured: OSError: no such meter",
        "shedding factor broken can be measured again",
        "shedding factor broken at 99%: level 3, rejecting 70 % of requests",
    ]
    guard.close()


def test_what_cannot_be_opened_is_tried_again() -> None:
    class Shut(Dial):
        shut = True

        def open(self, activity: Activity) -> Sample:
            if self.shut:
                raise OSError("shut")
            return super().open(activity)

    shut = Shut(99.0)
    guard = Guard(policy(line(shut)))
    until(lambda: state(guard).problem == "OSError: shut", "the failure is seen")
    shut.shut = False
    at_level(guard, 3)
    assert shut.opened == 1
    guard.close()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "many"])
def test_what_is_no_number_sheds_nothing(value: object) -> None:
    dial = Dial(99.0)
    guard = Guard(policy(line(dial)))
    at_level(guard, 3)
    dial.value = value  # type: ignore[assignment]
    at_level(guard, 0)
    assert all(guard.check(ANY) for _ in range(100))
    guard.close()


def test_a_factor_that_never_returns_stops_shedding(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging, over = threading.Event(), threading.Event()

    class Hanging(Dial):
        def __call__(self) -> float | None:
            if hanging.is_set():
                over.wait()
            return super().__call__()

    guard = Guard(policy(line(Hanging(99.0), (Level(1, 100),))))
    at_level(guard, 1)
    assert not guard.check(ANY)
    monkeypatch.setattr(shedding_module, "STALE_SECONDS", 0.0)
    hanging.set()
    until(lambda: guard.check(ANY), "nothing is shed any more")
    over.set()
    guard.close()


def test_levels_change_live_and_what_was_measured_stays() -> None:
    dial = Dial(92.0)
    guard = Guard(policy(line(dial)))
    at_level(guard, 2)
    guard._evaluator.swap(policy(line(dial, (Level(50, 100),))))
    assert (state(guard).level, state(guard).reject, dial.opened) == (1, 100, 1)
    assert not guard.check(ANY)
    guard._evaluator.swap(policy())
    assert guard.check(ANY)
    assert guard.factors == []
    guard._evaluator.swap(policy(line(dial)))
    at_level(guard, 2)
    assert dial.opened == 2
    guard.close()


def test_a_guard_that_waits_measures_what_was_swapped_in() -> None:
    dial = Dial(92.0)
    guard = Guard(policy())
    assert guard.wait(ANY)
    guard._evaluator.swap(policy(line(dial)))
    guard.wait(ANY)
    until(lambda: dial.opened == 1, "the load is measured")
    guard.close()


def test_levels_swapped_in_while_the_load_is_measured_hold_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    show, rank = Gauge.state, Shedding._rank
    measuring, swapped, ranked = (threading.Event() for _ in range(3))

    def is_measuring() -> bool:
        return threading.current_thread().name == "diana-shedding"

    def show_slowly(gauge: Gauge) -> GaugeState:
        if is_measuring():
            measuring.set()
            swapped.wait(0.2)
        return show(gauge)

    def rank_and_tell(shedding: Shedding) -> None:
        rank(shedding)
        if is_measuring() and measuring.is_set():
            ranked.set()

    dial = Dial(50.0)
    guard = Guard(policy(line(dial, (Level(1, 100),))))
    at_level(guard, 1)
    monkeypatch.setattr(Gauge, "state", show_slowly)
    monkeypatch.setattr(Shedding, "_rank", rank_and_tell)
    until(measuring.is_set, "the load is measured")
    guard._evaluator.swap(policy(line(dial, (Level(60, 100),))))
    swapped.set()
    until(ranked.is_set, "it was measured")
    assert (state(guard).level, guard.check(ANY).allowed) == (0, True)
    guard.close()


def test_an_edit_elsewhere_in_the_file_leaves_no_level(caplog: pytest.LogCaptureFixture) -> None:
    before, after = Gauge(line(Dial(0.0)), ()), Gauge(line(Dial(0.0)), ())
    before.add(92.0, 0.0)
    before.add(87.0, 1_000.0)  # below 90, and not yet at 85
    assert before.level == 2
    caplog.clear()
    after.take_over(before)
    assert (after.level, after.reject) == (2, 30)
    assert not caplog.records


def measuring_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "diana-shedding"}


def test_the_thread_begins_with_the_first_request_and_ends_with_the_guard() -> None:
    # An earlier test's guard lives, and so does its thread, until the garbage collector finds it.
    others = measuring_threads()
    closed, dropped = (Guard(policy(line(Dial(1.0)))) for _ in range(2))
    assert measuring_threads() <= others
    for guard in (closed, dropped):
        guard.check(ANY)
    assert len(measuring_threads() - others) == 2
    closed.close()
    del guard, dropped
    gc.collect()
    until(lambda: measuring_threads() <= others, "both have ended")


def test_without_shed_there_is_no_thread() -> None:
    others = measuring_threads()
    guard = Guard(policy())
    guard.check(ANY)
    assert measuring_threads() <= others
    assert guard.factors == []
    guard.close()


def test_a_guard_beside_another_sheds_nothing_and_leaves_the_others_thread_alone() -> None:
    guard = Guard(policy(line(Dial(50.0), (Level(1, 100),))))
    at_level(guard, 1)
    beside = Guard.beside(guard, policy())
    assert beside.check(ANY)
    beside.close()
    assert not guard.check(ANY)
    guard.close()


def test_where_no_thread_can_be_started_nothing_is_shed_until_one_can(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, room = threading.Thread.start, threading.Event()

    def full(thread: threading.Thread) -> None:
        if not room.is_set():
            raise RuntimeError("can't start new thread")
        start(thread)

    guard = Guard(policy(line(Dial(50.0), (Level(1, 100),))))
    monkeypatch.setattr(threading.Thread, "start", full)
    begin = monotonic()
    assert all(guard.check(ANY) for _ in range(100))
    told = [record for record in caplog.records if "measure the load" in record.getMessage()]
    # One more for every pause, if the machine is slow.
    assert 1 <= len(told) <= 1 + (monotonic() - begin) / RETRY_SECONDS
    room.set()
    until(lambda: not guard.check(ANY), "it is started after a pause")
    guard.close()


def test_the_default_levels_of_cpu_are_those_of_the_design() -> None:
    from diana.shedding.factors.cpu import cpu

    assert cpu.levels == CPU_LEVELS
