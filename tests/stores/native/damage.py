"""Zones whose memory others have written over: `python -m tests.stores.native.damage SEED ROUNDS`. It must not crash, whatever it finds.

Only the lock is spared: it is made anew when a zone is opened that no process uses.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from diana.core.charge import Charge
from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.decision import Decision
from diana.core.limit import Limit
from diana.runtime.entry_points import algorithms
from diana.stores.c_kernels import kernels, terms_of
from tests.stores.native.opened import BEGIN_US, SECOND_US

SIZE = 512 * 1024
SIGN = 64


def meters() -> list[CounterSpec]:
    options: dict[str, dict[str, Any]] = {"SW": {"slices": 30}}
    return [
        meter_from_limit(f"rule {number}", Limit(5, SECOND_US), algorithms()[code], options.get(code, {}))
        for code in ("TB", "LB", "W", "SW", "SL")
        for number in range(3)
    ]  # fmt: skip


def use(counters: Any, chance: random.Random, some: list[CounterSpec], steps: int) -> None:
    now = BEGIN_US
    for _ in range(steps):
        now += chance.choice((0, 1, SECOND_US, 60 * SECOND_US, -2 * SECOND_US))
        key = f"key {chance.randrange(200)}"
        picked = chance.sample(some, chance.randint(1, 4))
        charges = [Charge(meter, key, chance.randrange(4)) for meter in picked]
        for decision in counters.decide(charges, now):
            assert isinstance(decision, Decision)
        meter = chance.choice(some)
        counters.refund(terms_of(meter), key, 1, now - chance.randrange(SECOND_US), now)
        if not chance.randrange(20):
            counters.reset(terms_of(meter), key)


def damage(body: bytearray, chance: random.Random) -> None:
    """A few words, many words, or a whole stretch; sometimes with small numbers, which look like something."""
    for _ in range(chance.choice((1, 10, 1_000))):
        place = chance.randrange(SIGN, len(body) - 64)
        if chance.random() < 0.7:
            # Where the heads, owners and first slots are.
            place = 4096 + 64 + chance.randrange(60_000)
        length = chance.choice((1, 4, 8, 64))
        small = chance.random() < 0.5
        body[place : place + length] = bytes(
            chance.randrange(4) if small else chance.randrange(256) for _ in range(length)
        )


def main(seed: str, rounds: str) -> None:
    native, some = kernels(), meters()
    for number in range(int(rounds)):
        chance = random.Random(int(seed) * 1_000_003 + number)
        body = bytearray(SIZE)
        native.lay_out(body)
        counters = native.Counters(0, body, bytes(16), 0)
        use(counters, chance, some, 150)
        for _ in range(3):
            del counters
            damage(body, chance)
            try:
                native.adopt(body)
                counters = native.Counters(0, body, bytes(16), 0)
            except ValueError:
                native.lay_out(body)
                counters = native.Counters(0, body, bytes(16), 0)
            use(counters, chance, some, 60)
            counters.statistics()
            counters.owners()
        counters.clear()
        use(counters, chance, some, 20)
    print("whole")


if __name__ == "__main__":
    main(*sys.argv[1:])
