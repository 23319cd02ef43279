"""So many at once, in code: `slot`, `held`, `@limit("5 at once")`, in this process and through a server."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from subprocess import PIPE, Popen
from typing import Any
from uuid import uuid4

import pytest

from diana import (
    AsyncLimiter,
    ConfigError,
    Decision,
    DianaError,
    Limiter,
    LimitExceeded,
    StoreError,
    limit,
)
from diana.core.decision import UNKNOWN
from diana.stores.memory import MemoryStore
from diana.stores.zone.zone_file import remove_zone_file
from diana.testing import FakeClock
from tests.servers.server import Server
from tests.servers.waiting import until

STORES = ["memory", "shared", "redis"]
PATIENT = "budget=10s"


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Another store is one more line here."""
    if request.param == "memory":
        yield "memory://"
    elif request.param == "shared":
        zone = f"slots-{uuid4().hex[:12]}"
        yield f"shared://{zone}?size=4m"
        remove_zone_file(zone)
    else:
        redis7: Server = request.getfixturevalue("redis7")
        yield f"{redis7.url}?{PATIENT}"


def name() -> str:
    return f"slots {uuid4().hex}"


class Inside:
    """How many are inside now, and the most that ever were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = self.entered = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.entered += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


def test_a_place_is_taken_and_given_back() -> None:
    limiter = Limiter("2 at once")
    with limiter.slot("a") as first, limiter.slot("a") as second:
        assert (first.remaining, second.remaining) == (1, 0)
        with (
            pytest.raises(LimitExceeded, match="as soon as one is given back") as raised,
            limiter.slot("a"),
        ):
            pass
        assert raised.value.decision.retry_after is None
        assert not raised.value.decision.never
        assert limiter.peek("b")
    assert limiter.peek("a").remaining == 1


def test_a_cost_above_all_places_is_never_to_be_had() -> None:
    decision = Limiter("2 at once").take("a", 3)
    assert (decision.allowed, decision.never, decision.retry_after) == (False, True, None)


def test_retry_says_when_to_come_back() -> None:
    limiter = Limiter("1 at once", retry="2s")
    with limiter.slot("a"):
        assert limiter.take("a").retry_after == 2.0


def test_a_refund_gives_the_place_back_once() -> None:
    limiter = Limiter("3 at once")
    one, _, _ = (limiter.take("a") for _ in range(3))
    for _ in range(3):
        limiter.refund(one)
        assert limiter.peek("a").remaining == 0
        assert limiter.peek("a")


def test_reset_frees_all() -> None:
    limiter = Limiter("1 at once")
    with limiter.slot("a"):
        limiter.reset("a")
        assert limiter.peek("a")


def test_a_place_whose_process_died_is_free_after_hold_and_not_before() -> None:
    clock = FakeClock(10**12)
    limiter = Limiter("1 at once", hold="10s", clock=clock)
    assert limiter.take("a")
    clock.advance(9.999999)
    assert limiter.take("a").outcome[2] == UNKNOWN
    clock.advance(0.000001)
    assert limiter.take("a")


@pytest.mark.parametrize(
    ("spelling", "options", "said"),
    [
        ("5/minute", {"algo": "C"}, "5 at once"),
        ("5 at once", {"algo": "SL"}, "remove algo"),
        ("5 at once; 10/minute", {}, "two limiters"),
        ("5 at once", {"hold": "50ms"}, "at least 100ms"),
        ("5 at once", {"hold": 60}, "duration"),
        ("5 at once", {"burst": 3}, "burst"),
        ("5 at once", {"max_wait": "1s"}, "slot"),
        ("0 at once", {}, "from 1"),
        ("5/minute", {"hold": "5s"}, "hold"),
    ],
)
def test_what_cannot_be_meant_is_refused(spelling: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Limiter(spelling, **options)  # type: ignore[arg-type]


def test_only_places_can_be_given_back() -> None:
    with pytest.raises(ConfigError, match="5 at once"):
        Limiter("5/minute").slot("a")


def test_200_tasks_are_never_more_than_5_inside_and_all_get_in(url: str) -> None:
    inside = Inside()

    async def enter(limiter: AsyncLimiter, full: asyncio.Event) -> None:
        async with limiter.slot("a", wait=60):
            with inside:
                if inside.now == 5:
                    full.set()
                await asyncio.wait_for(full.wait(), 60)  # the first five are inside together
                await asyncio.sleep(0.001)

    async def crowd() -> None:
        limiter, full = AsyncLimiter("5 at once", store=url, name=name()), asyncio.Event()
        await asyncio.gather(*(enter(limiter, full) for _ in range(200)))
        await limiter.close()

    asyncio.run(crowd())
    assert (inside.entered, inside.most) == (200, 5)


def test_40_threads_are_never_more_than_5_inside(url: str) -> None:
    limiter = Limiter("5 at once", store=url, name=name())
    inside, refused = Inside(), []
    together = threading.Barrier(40)

    def push() -> None:
        together.wait()
        for _ in range(25):
            try:
                with limiter.slot("a"), inside:
                    time.sleep(0.0005)
            except LimitExceeded as denied:
                refused.append(denied)

    threads = [threading.Thread(target=push) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert inside.most <= 5
    assert inside.entered + len(refused) == 1_000
    until(lambda: limiter.peek("a").remaining == 4, "all places are free")
    limiter.close()


PROCESS = """
import os, sys, time
from diana import Limiter
limiter = Limiter("5 at once", store=sys.argv[1], name=sys.argv[2], hold="30s")
book = open(sys.argv[3], "ab", buffering=0)
for _ in range(40):
    with limiter.slot("a", wait=60):
        book.write(b"+")
        while os.fstat(book.fileno()).st_size < 5:  # the first five are inside together
            time.sleep(0.001)
        time.sleep(0.001)
        book.write(b"-")
limiter.close()
"""


@pytest.fixture(params=["shared", "redis"])
def common(request: pytest.FixtureRequest) -> Iterator[str]:
    """A store that processes share."""
    if request.param == "shared":
        zone = f"slots-{uuid4().hex[:12]}"
        yield f"shared://{zone}?size=4m"
        remove_zone_file(zone)
    else:
        redis7: Server = request.getfixturevalue("redis7")
        yield f"{redis7.url}?{PATIENT}"


def test_8_processes_are_never_more_than_5_inside(common: str, tmp_path: object) -> None:
    book, told = f"{tmp_path}/book", name()
    workers = [Popen([sys.executable, "-c", PROCESS, common, told, book]) for _ in range(8)]
    assert [worker.wait(120) for worker in workers] == [0] * 8
    now = most = 0
    with open(book, "rb") as written:
        for sign in written.read().decode():
            now += 1 if sign == "+" else -1
            most = max(most, now)
    assert now == 0
    assert most == 5


ONE_PLACE = """
import sys
from diana import Limiter
limiter = Limiter("5 at once", store=sys.argv[1], name=sys.argv[2])
print(limiter.take("a").allowed, flush=True)
sys.stdin.read()
"""


def test_of_8_processes_exactly_5_get_a_place(common: str) -> None:
    told = name()
    workers = [
        Popen(
            [sys.executable, "-c", ONE_PLACE, common, told],
            stdin=PIPE,
            stdout=PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    said = [worker.stdout.readline().strip() for worker in workers if worker.stdout]
    for worker in workers:
        worker.communicate()
    assert sorted(said) == ["False"] * 3 + ["True"] * 5


HOLDER = """
import sys, time
from diana import Limiter
limiter = Limiter("1 at once", store=sys.argv[1], name=sys.argv[2], hold="6s")
with limiter.slot("a"):
    print("inside", flush=True)
    time.sleep(3600)
"""


def test_a_killed_holder_frees_its_place_after_hold_and_not_before(common: str) -> None:
    told, url = name(), common
    limiter = Limiter("1 at once", store=url, name=told, hold="6s")
    holder = Popen([sys.executable, "-c", HOLDER, url, told], stdout=PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"inside\n"
    held_until = time.monotonic() + 7  # longer than `hold`: it is renewed
    while time.monotonic() < held_until:
        assert not limiter.take("a"), "a place that is renewed was free"
        time.sleep(0.1)
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    killed = time.monotonic()
    assert not limiter.take("a"), "free at once"
    until(lambda: bool(limiter.take("a")), "the place is free")
    # It was renewed last at most four seconds before it died.
    assert time.monotonic() - killed >= 6 - 4 - 1
    limiter.close()


def test_a_place_is_kept_for_ten_times_its_hold(url: str) -> None:
    limiter = Limiter("1 at once", store=url, name=name(), hold="600ms")
    passed = 0
    with limiter.slot("a"):
        ends = time.monotonic() + 6
        while time.monotonic() < ends:
            passed += bool(limiter.peek("a"))
            time.sleep(0.05)
    account = limiter._limits.places
    assert account is not None
    # A process that stands still for longer than `hold` loses the place, and says so.
    assert not passed or account.expired, "a place was free, and nobody says that it ran off"
    until(lambda: bool(limiter.peek("a")), "the place is free")
    limiter.close()


def test_first_come_first_served(url: str) -> None:
    limiter = Limiter("1 at once", store=url, name=name())
    order: list[int] = []
    lines = limiter._limits.lines

    def wait(number: int) -> None:
        with limiter.slot("a", wait=60):
            order.append(number)

    threads: list[threading.Thread] = []
    line = limiter._limits.line_of("a") or ""
    with limiter.slot("a"):
        for number in range(8):
            threads.append(threading.Thread(target=wait, args=(number,)))
            threads[-1].start()
            until(lambda: lines.length(line) == len(threads), "it stands in line")
    for thread in threads:
        thread.join()
    assert order == list(range(8))
    limiter.close()


def test_past_the_wait_it_is_denied() -> None:
    limiter = Limiter("1 at once")
    with limiter.slot("a"), pytest.raises(LimitExceeded), limiter.slot("a", wait=0.05):
        pass


def test_waiting_on_a_fake_clock_lasts_until_the_place_runs_off() -> None:
    clock = FakeClock(10**12)
    limiter = Limiter("1 at once", hold="10s", clock=clock)
    assert limiter.take("a")
    began = clock()
    assert limiter.wait("a")
    assert 10 <= (clock() - began) / 1_000_000 < 10.5


def test_10000_cancelled_tasks_leak_nothing(url: str) -> None:
    async def stay(limiter: AsyncLimiter) -> None:
        async with limiter.slot("a", wait=60):
            await asyncio.sleep(3600)

    async def cancel() -> Decision:
        limiter = AsyncLimiter("5 at once", store=url, name=name())
        for step in range(200):
            tasks = [asyncio.create_task(stay(limiter)) for _ in range(50)]
            for _ in range(step % 5):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(600):
            if (await limiter.peek("a")).remaining == 4:
                break
            await asyncio.sleep(0.05)
        found = await limiter.peek("a")
        await limiter.close()
        return found

    found = asyncio.run(cancel())
    assert (found.allowed, found.remaining) == (True, 4)


def test_10000_failures_leak_nothing(url: str) -> None:
    limiter = Limiter("5 at once", store=url, name=name())
    for _ in range(10_000):
        try:
            with limiter.slot("a", wait=60):
                raise KeyError
        except KeyError:
            pass
    until(lambda: limiter.peek("a").remaining == 4, "all places are free")
    limiter.close()


def test_a_place_that_is_forgotten_is_given_back_by_the_collector() -> None:
    limiter = Limiter("1 at once")
    limiter.keep_slots(limiter.take("a"))
    gc.collect()
    until(lambda: bool(limiter.peek("a")), "the place is free")


def test_a_slot_that_is_entered_and_dropped_is_released_by_the_collector() -> None:
    limiter = Limiter("1 at once")
    ExitStack().enter_context(limiter.slot("a"))
    gc.collect()
    until(lambda: bool(limiter.peek("a")), "the slot is free")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_that_leaves_a_slot_does_not_release_its_parents_slot(url: str) -> None:
    """In private memory it has a copy of the counter, which it must release."""
    limiter = Limiter("1 at once", store=url, name=name())
    reader, writer = os.pipe()
    child = -1
    try:
        with limiter.slot("a"):
            child = os.fork()
        if child == 0:
            if url == "memory://":
                os.write(writer, b"free" if limiter.peek("a") else b"taken")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert limiter.peek("a"), "the parent has released its slot"
        with limiter.slot("a"):
            child = os.fork()
            if child:
                assert os.waitpid(child, 0)[1] == 0
                assert not limiter.peek("a"), "the slot is the parent's"
    finally:
        if child == 0:
            os._exit(0)
    if url == "memory://":
        assert os.read(reader, 9) == b"free"
    os.close(reader)
    os.close(writer)


def test_a_decorated_function_runs_so_often_at_once() -> None:
    inside = Inside()

    @limit("2 at once", key="a")
    def work() -> None:
        with inside:
            if inside.now <= 2:
                work()

    with pytest.raises(LimitExceeded):
        work()
    assert inside.most == 2
    assert work.limiter.peek("a").remaining == 1


def test_a_decorated_coroutine_waits_for_a_place() -> None:
    inside = Inside()

    @limit("3 at once", key="a", timeout=60)
    async def work() -> None:
        with inside:
            await asyncio.sleep(0.001)

    async def crowd() -> None:
        await asyncio.gather(*(work() for _ in range(50)))

    asyncio.run(crowd())
    assert (inside.entered, inside.most) == (50, 3)


def through(function: Any) -> Any:
    """As an ordinary decorator does."""

    def wrapper() -> Any:
        return function()

    return wrapper


async def coroutine() -> None: ...


@contextmanager
def managed() -> Iterator[None]:
    yield


@asynccontextmanager
async def amanaged() -> AsyncIterator[None]:
    yield


def generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (through(coroutine), "an awaitable"),
        (through(generator), "a generator"),
        (managed, "a context manager"),
        (amanaged, "a context manager"),
    ],
    ids=["coroutine", "generator", "contextmanager", "asynccontextmanager"],
)
def test_a_call_whose_work_is_not_done_when_it_returns_is_refused(function: Any, got: str) -> None:
    limited = limit("1 at once", name="unfinished")(function)
    for _ in range(2):
        with pytest.raises(ConfigError, match=got):
            limited()
    assert limited.limiter.peek(""), "the slot is released"


def test_an_object_whose_call_is_a_generator_is_refused() -> None:
    class Work:
        def __call__(self) -> Iterator[int]:
            yield 1

    with pytest.raises(ConfigError, match="generator"):
        limit("1 at once", name="work")(Work())


def test_a_generator_is_no_call_that_ends() -> None:
    with pytest.raises(ConfigError, match="generator"):

        @limit("2 at once")
        def work() -> Iterator[int]:
            yield 1


@pytest.mark.parametrize("among", [2, 1], ids=["with another free", "and it was the last"])
def test_a_slot_is_for_one_at_a_time(among: int) -> None:
    limiter = Limiter(f"{among} at once")
    slot = limiter.slot("a")
    with slot:
        with pytest.raises(DianaError), slot:
            pass
        assert limiter.peek("a").allowed == (among == 2)
    with slot:
        assert limiter.peek("a").allowed == (among == 2)
    assert limiter.peek("a").remaining == among - 1


ENDS_BEHIND_IT = """
import asyncio, multiprocessing, sys
from diana import AsyncLimiter, Limiter
from diana.slots import slot as places

places.CLOSE_SECONDS = 20.0  # the server may stand still for as long as it is waited for at the end

url, name, how = sys.argv[1:]

def work():
    with Limiter("1 at once", store=url, name=name).slot("a"):
        pass

async def awork():
    async with AsyncLimiter("1 at once", store=url, name=name).slot("a"):
        pass

if how == "script":
    work()
elif how == "child":
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    sys.exit(child.exitcode)
else:
    asyncio.run(awork())
"""


@pytest.mark.parametrize("how", ["script", "child", "loop"])
def test_a_process_that_ends_behind_its_slot_has_given_it_back(redis7: Server, how: str) -> None:
    words = [sys.executable, "-c", ENDS_BEHIND_IT, f"{redis7.url}?{PATIENT}", name(), how]
    for _ in range(3):
        with Popen(words) as process:
            assert process.wait(30) == 0


class FailingStore(MemoryStore):
    """Renews nothing."""

    def renew(self, *_: object) -> int:
        raise StoreError("no")


def test_a_store_that_fails_costs_the_others_no_place(redis7: Server) -> None:
    called = name()
    url = f"{redis7.url}?{PATIENT}"
    # Twice as long as a process may stand still, and watched for longer than that.
    limiter = Limiter("1 at once", store=url, name=called, hold="4s")
    other = Limiter("1 at once", store=url, name=called, hold="4s")
    failing = Limiter("9 at once", store=FailingStore(), name="failing", hold="300ms")
    with failing.slot("a"), limiter.slot("a"):
        deadline = time.monotonic() + 6
        while time.monotonic() < deadline:
            assert not other.peek("a"), "it was not renewed"
            time.sleep(0.05)
    until(lambda: other.peek("a"), "it is given back")
    limiter.close()
    other.close()
