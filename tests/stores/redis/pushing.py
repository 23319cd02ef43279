"""Many who push at once: what runs in other processes, and an algorithm that no server knows."""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from diana.algorithms.fixed_window import Window
from diana.algorithms.sliding_log import SlidingLog
from diana.core.charge import Charge
from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.limit import Limit
from diana.runtime.entry_points import algorithms
from diana.stores.redis.store import RedisStore
from tests.stores.redis.counting import BEGIN_US, SECOND_US, opened


class Homemade:
    """A window without a kernel in Lua."""

    code = "HM"
    spelling = "homemade"
    options: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    examples: tuple[Mapping[str, Any], ...] = ({},)
    params = Window().params
    decide = staticmethod(Window.decide)
    refund = staticmethod(Window.refund)
    promise = staticmethod(Window.promise)


class HomemadeLog(Homemade):
    """A log without a kernel in Lua."""

    code = "HL"
    spelling = "homemade log"
    keeps_log = True
    params: Any = SlidingLog().params
    decide: Any = staticmethod(SlidingLog.decide)
    refund: Any = staticmethod(SlidingLog.refund)
    promise: Any = staticmethod(SlidingLog.promise)


HOMEMADE: dict[str, Any] = {"HM": Homemade(), "HL": HomemadeLog()}
ALGORITHMS = [*algorithms(), *HOMEMADE]


def narrow(name: str, code: str, rpu: int = 40, unit_us: int = 60 * SECOND_US) -> CounterSpec:
    """A limit by any of them, one that is not registered included."""
    algorithm: Any = HOMEMADE.get(code) or algorithms()[code]
    options = {"burst": rpu - 1} if code == "LB" else {}
    return meter_from_limit(f"diana:{name}", Limit(rpu, unit_us), algorithm, options)


def pushed(store: RedisStore, name: str, code: str, times: int) -> int:
    """How many of so many passed; -1 if one was not decided by the store."""
    decisions = [store.decide([Charge(narrow(name, code), "k")], BEGIN_US)[0] for _ in range(times)]
    return -1 if any(one.degraded for one in decisions) else sum(map(bool, decisions))


def push_from_another_process(
    where: str | RedisStore, name: str, times: int, answer: Connection
) -> None:
    """With a store that was inherited by a fork, or one of its own."""
    if isinstance(where, RedisStore):
        answer.send({code: pushed(where, name, code, times) for code in ALGORITHMS})
    else:
        with opened(where) as store:
            answer.send({code: pushed(store, name, code, times) for code in ALGORITHMS})
