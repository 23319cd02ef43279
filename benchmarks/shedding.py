"""What load shedding costs: a request while nothing is shed, a request while some are, and measuring."""

from __future__ import annotations

import logging
from statistics import median
from time import monotonic, sleep, thread_time

from benchmarks.race import Contestant, race
from benchmarks.report import Figure, Section, at_most
from diana import Guard, Policy, Request
from diana.core.policy import Settings
from diana.core.shed_settings import Factor, Level, ShedSettings
from diana.rules.loading import rules_from_bytes
from diana.shedding.load_shedder import Shedding
from diana.shedding.sampling import SAMPLE_SECONDS

ONE_RULE = b"limits: [{url: /, rules: [{name: api, actor: header X-Account-Id, unit: hour, rpu: 1000000000}]}]"
SPARED = b"shed: [{factor: memory, except: [/healthz], last: {header X-Priority: [high]}}]\n"
WITHOUT, IDLE = "Guard.check without shed", "with shed, while nothing is shed"
ALLOWED, MIXED, REJECTED = "at 1 %, mostly allowed", "at 50 %", "at 100 %, all rejected"


def run(quick: bool) -> Section:
    rounds = 20 if quick else 120
    return Section(
        name="shedding",
        title="load shedding",
        how=f"One local rule by header, 200 callers, each request new and read for the first time; {rounds} rounds. The factor is fixed, "
        "with `except` and `last`. Measuring: the processor time of one look at the factors of `shed: default`, twice a second.",
        figures=[*_checking(rounds), *_measuring(50 if quick else 400)],
        quick=quick,
    )


def _guard(reject: int) -> Guard:
    """0: there is a factor, below its level."""
    read = rules_from_bytes(SPARED + ONE_RULE)
    (written,) = read.settings.shed
    value = 50.0 if reject else 1.0
    kind = Factor(lambda: lambda _: lambda: value, unit="%")
    levels = (Level(10, max(1, reject)),)
    line = ShedSettings("fixed", kind, {}, levels, kind.make(), written.exempt, written.last)
    guard = Guard(Policy(read.rules, settings=Settings(shed=(line,))))
    end = monotonic() + 60
    while guard.factors[0].value is None and monotonic() < end:
        sleep(0.01)
    return guard


def _checking(rounds: int) -> list[Figure]:
    requests = [
        Request("GET", "/api/v1/things", {"Host": "shop", "X-Account-Id": f"a{n % 200}"})
        for n in range(5_000)
    ]

    def make_anew() -> None:
        for request in requests:
            request.__init__("GET", request.path, request.headers)  # type: ignore[misc]

    plain = Guard(rules_from_bytes(ONE_RULE))
    guards = {IDLE: _guard(0), ALLOWED: _guard(1), MIXED: _guard(50), REJECTED: _guard(100)}
    contestants = [Contestant(WITHOUT, plain.check, settle=make_anew)]
    contestants += [
        Contestant(name, guard.check, passed=lambda _: True, settle=make_anew)
        for name, guard in guards.items()
    ]
    times = race(contestants, requests, turn=2_500, rounds=rounds)
    figures = [Figure(WITHOUT, times.median_us(WITHOUT), "µs")]
    for name, guard in guards.items():
        ratio = times.ratio(name)
        added = (ratio - 1) * times.median_us(WITHOUT)
        goals = (at_most(added, 0.2, "µs added"),) if name == IDLE else ()
        ratios = {"× without": ratio, "µs added": added}
        figures.append(Figure(name, times.median_us(name), "µs", ratios, goals=goals))
        guard.close()
    return figures


def _measuring(looks: int) -> list[Figure]:
    logging.getLogger("diana").addHandler(logging.NullHandler())  # the machine may be busy
    shedding = Shedding()
    shedding.use(rules_from_bytes(b"shed: default\n" + ONE_RULE).settings)
    shedding.begin()
    seconds = []
    for _ in range(looks):
        before = thread_time()
        shedding.sample(monotonic())
        seconds.append(thread_time() - before)
        sleep(0.005)
    look = median(seconds)
    share = 100 * look / SAMPLE_SECONDS
    return [
        Figure("one look at the factors", look * 1e6, "µs"),
        Figure("measuring", share, "% of a core", goals=(at_most(share, 0.1, "% of a core"),)),
    ]
