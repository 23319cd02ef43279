"""A request against a rules file: finding its rules, and asking them.

Matching is raced with more paths than a policy remembers, so that each is looked up in the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.race import Contestant, race
from benchmarks.report import Figure, Section, at_most
from diana import Guard, Limiter, Policy, Request
from diana.rules.loading import rules_from_bytes

FEW, MANY = 10, 10_000
OVERRIDES = 100_000
ONE_RULE = b"url: /\nrules: [{name: api, actor: header X-Account-Id, unit: hour, rpu: 1000000000}]"
THREE_RULES = b"""
limits:
  - url: /
    rules:
      - {actor: ip, unit: hour, rpu: 1000000000}
      - {actor: header X-Account-Id, unit: hour, rpu: 1000000000}
  - url: /api
    rules:
      - {actor: all, unit: hour, rpu: 1000000000}
"""


def run(quick: bool) -> Section:
    rounds = 20 if quick else 120
    return Section(
        name="rules",
        title="a request against a rules file",
        how=f"Matching: {FEW} and {MANY:,} urls of two segments with a rule each, 20,000 different paths of four segments, each path "
        f"asked once per pass; {rounds} rounds. Checking: 200 callers, each request new and read for the first time, three local rules "
        "(by address, by header, in total) against one `Limiter.take` by the same callers under the same limit. Overrides: one local rule "
        f"by header, without and with {OVERRIDES:,} overrides of a thousand different numbers; every caller has one.",
        figures=[*_matching(rounds), *_checking(rounds), *_overriding(rounds)],
        quick=quick,
    )


def _matching(rounds: int) -> list[Figure]:
    names = {count: f"matching, {count:,} urls" for count in (FEW, MANY)}
    contestants = []
    for count, name in names.items():
        policy = _policy(count)
        contestants.append(Contestant(name, _matcher(policy, _requests_for(count))))
    times = race(contestants, range(20_000), turn=2_000, rounds=rounds)
    few, many = (
        Figure(name, times.median_us(name), "µs", {f"× {FEW} urls": times.ratio(name)})
        for name in names.values()
    )
    slower = times.ratio(names[MANY])
    goal = at_most(slower, 1.3, f"× {FEW} urls")
    return [few, Figure(many.what, many.value, many.unit, many.ratios, goals=(goal,))]


def _policy(urls: int) -> Policy:
    blocks = [
        f"- url: /shop{number % 100}/product{number // 100}\n  rules: [{{unit: second, rpu: 5}}]"
        for number in range(urls)
    ]
    return rules_from_bytes("\n".join(blocks).encode())


def _requests_for(urls: int) -> Sequence[Request]:
    return [
        Request(path=f"/shop{n % urls % 100}/product{n % urls // 100}/view/{n}")
        for n in range(20_000)
    ]


def _matcher(policy: Policy, requests: Sequence[Request]) -> Callable[[int], bool]:
    match = policy.match

    def matched(number: int) -> bool:
        return len(match(requests[number])) == 1

    return matched


def _checking(rounds: int) -> list[Figure]:
    guard = Guard(rules_from_bytes(THREE_RULES))
    take = Limiter("1000000000/hour").take

    requests = [
        Request(
            "GET",
            "/api/v1/things",
            {"Host": "shop", "X-Account-Id": f"a{n % 200}"},
            "",
            f"192.0.2.{n % 200}",
        )
        for n in range(5_000)
    ]

    def make_anew() -> None:
        # Or the second round would find them read already.
        for request in requests:
            request.__init__("GET", request.path, request.headers, "", request.peer)  # type: ignore[misc]

    one, all_three = "one Limiter.take", "Guard.check, three local rules"
    contestants = [
        Contestant(one, lambda request: take(request.headers["X-Account-Id"])),
        Contestant(all_three, guard.check, settle=make_anew),
    ]
    times = race(contestants, requests, turn=2_500, rounds=rounds)
    goal = at_most(times.ratio(all_three), 6, "× one take")
    return [
        Figure(one, times.median_us(one), "µs"),
        Figure(
            all_three,
            times.median_us(all_three),
            "µs",
            {"× one take": times.ratio(all_three)},
            goals=(goal,),
        ),
    ]


def _overriding(rounds: int) -> list[Figure]:
    without, with_many = Guard(rules_from_bytes(ONE_RULE)), Guard(rules_from_bytes(ONE_RULE))
    for number in range(OVERRIDES):
        with_many.override("api", f"a{number}", rpu=1_000_000 * (1 + number % 1_000))
    requests = [
        Request("GET", "/api/v1/things", {"Host": "shop", "X-Account-Id": f"a{n % 200}"})
        for n in range(5_000)
    ]

    def make_anew() -> None:
        for request in requests:
            request.__init__("GET", request.path, request.headers)  # type: ignore[misc]

    plain, overridden = "Guard.check, one rule", f"the same with {OVERRIDES:,} overrides"
    contestants = [
        Contestant(plain, without.check, settle=make_anew),
        Contestant(overridden, with_many.check, settle=make_anew),
    ]
    times = race(contestants, requests, turn=2_500, rounds=rounds)
    slower = times.ratio(overridden)
    return [
        Figure(plain, times.median_us(plain), "µs"),
        Figure(
            overridden,
            times.median_us(overridden),
            "µs",
            {"× without": slower},
            goals=(at_most(slower, 1.2, "× without"),),
        ),
    ]
