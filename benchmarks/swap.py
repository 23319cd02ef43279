"""Ten thousand rules change while requests are served: how long until the first decision by the new ones, and does anybody notice?

A pause is the longest time between two decisions of one who does nothing but ask. On a busy machine the operating system makes pauses
of its own; so the same is measured with nothing else going on, for comparison. The best of the rounds counts: a neighbour can only add.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import monotonic, perf_counter, sleep
from typing import NamedTuple

from benchmarks.report import Figure, Section, at_most
from diana import AsyncGuard, Guard, Request
from diana.rules.backends.atomic_file import write_atomically
from diana.rules.loading import rules_from_bytes
from diana.rules.watch.swap_without_gc import may_tune_process

RULES = 10_000
TUNED = "an event loop, in a process that may be tuned"
REQUEST = Request("GET", "/shop7/product7", peer="203.0.113.9")


class Change(NamedTuple):
    """Milliseconds."""

    seen: float
    """From the new file being there to the first decision by it."""
    pause: float


def run(quick: bool) -> Section:
    rounds = 2 if quick else 5
    reading = median(_reading_ms(number) for number in range(rounds))
    swapping = median(_swapping_ms() for _ in range(rounds))
    seen: list[float] = []
    figures = [
        Figure(
            f"reading {RULES:,} rules", reading, "ms", note="alone, with the garbage collector on"
        ),
        Figure(
            "swapping them in, to the first decision",
            swapping,
            "ms",
            goals=(at_most(swapping, 200, "ms"),),
        ),
    ]
    serving = (("a serving thread", _in_a_thread), ("an event loop", _in_a_loop))
    for who, measure in (*serving, (TUNED, _in_a_loop)):
        if who == TUNED:
            may_tune_process()  # the last of them: from here on it holds for this process
        changes = [_changed(measure, number) for number in range(rounds)]
        alone = min(_alone(measure) for _ in range(rounds))
        pause = min(change.pause for change in changes)
        seen += [change.seen for change in changes]
        note = f"{alone:.2f} ms with nothing else going on"
        figures.append(
            Figure(f"longest pause of {who}", pause, "ms", {}, note, (at_most(pause, 10, "ms"),))
        )
    whole = median(seen)
    figures.append(
        Figure(
            "from the file being there to the first decision",
            whole,
            "ms",
            note="with up to 550 ms until it is looked at",
            goals=(at_most(whole, 2_000, "ms"),),
        )
    )
    return Section(
        name="swap",
        title="other rules while requests are served",
        how=f"{RULES:,} urls with a rule each, {len(_document(0)) >> 10} KiB, all of them changed at once, in a file that is replaced; "
        f"{rounds} rounds. One thread, or one coroutine, asks for a decision again and again. "
        "A pause is the longest time between two of its decisions, the least of the rounds. In a process that may be tuned, as the "
        "gateway's, the collector rests while rules are read and threads switch more often; an application's is left alone.",
        figures=figures,
        quick=quick,
    )


def _document(number: int) -> bytes:
    rules = (
        f"- url: /shop{n % 100}/product{n // 100}\n"
        f"  rules: [{{actor: ip, unit: second, rpu: {10**6 + number}}}]\n"
        for n in range(RULES)
    )
    return "".join(rules).encode()


def _reading_ms(number: int) -> float:
    text = _document(number)
    begin = perf_counter()
    rules_from_bytes(text)
    return (perf_counter() - begin) * 1e3


def _swapping_ms() -> float:
    guard = Guard(rules_from_bytes(_document(0)))
    other = rules_from_bytes(_document(1))
    guard.check(REQUEST)
    begin = perf_counter()
    guard._evaluator.swap(other)
    assert guard.check(REQUEST).version == other.version
    return (perf_counter() - begin) * 1e3


Measure = Callable[[Path, Callable[[str], bool]], float]
"""Ask until the version is as wanted; the longest pause in seconds."""


def _changed(measure: Measure, number: int) -> Change:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rules.yaml"
        path.write_bytes(_document(0))
        new = _document(number + 1)
        wanted = rules_from_bytes(new).version
        there, seen = [0.0], [0.0]

        def write() -> None:
            sleep(0.2)
            write_atomically(path, new)
            there[0] = monotonic()

        def is_over(version: str) -> bool:
            if version == wanted and not seen[0]:
                seen[0] = monotonic()
            # And a while longer: what is replaced has to be freed, too.
            return bool(seen[0]) and monotonic() > seen[0] + 0.5

        writer = Thread(target=write)
        writer.start()
        pause = measure(path, is_over)
        writer.join()
        return Change((seen[0] - there[0]) * 1e3, pause * 1e3)


def _alone(measure: Measure) -> float:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rules.yaml"
        path.write_bytes(_document(0))
        end: list[float] = []

        def is_over(_: str) -> bool:
            if not end:
                end.append(monotonic() + 2)
            return monotonic() > end[0]

        return measure(path, is_over) * 1e3


def _in_a_thread(path: Path, is_over: Callable[[str], bool]) -> float:
    guard = Guard.from_file(path)
    longest, done = [0.0], Event()

    def serve() -> None:
        version, last = "", perf_counter()
        while not is_over(version):
            version = guard.check(REQUEST).version
            now = perf_counter()
            longest[0] = max(longest[0], now - last)
            last = now
        done.set()

    thread = Thread(target=serve)
    thread.start()
    done.wait()
    thread.join()
    guard.close()
    return longest[0]


def _in_a_loop(path: Path, is_over: Callable[[str], bool]) -> float:
    async def serve() -> float:
        guard = AsyncGuard.from_file(path)
        version, longest, last = "", 0.0, perf_counter()
        while not is_over(version):
            version = (await guard.check(REQUEST)).version
            await asyncio.sleep(0)
            now = perf_counter()
            longest = max(longest, now - last)
            last = now
        await guard.close()
        return longest

    return asyncio.run(serve())
