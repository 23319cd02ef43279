"""Refunds of known charges that could not be carried out at once: they are tried again in the background.

A charge is known if the store reported it. Its refund may find no free connection, a spent budget, other writers that are quicker, or a
server that is lost. Then nothing was done, and the refund is tried again until it succeeds or the charge no longer counts. A refund of
unknown outcome is not tried again: done twice, it would let a client past its limit.
"""

from __future__ import annotations

import atexit
import time
from collections import deque
from collections.abc import Callable
from os import getpid
from time import monotonic
from typing import Any, NamedTuple
from weakref import WeakSet

from diana.core.counter import CounterSpec
from diana.core.limit import uses_slots
from diana.redis_client.reply_errors import BadCounter, Contended, Failure, UnknownOutcome
from diana.stores.redis.protocol.commands import Exchange, TimeLeft
from diana.stores.redis.protocol.compare_and_swap import Part, Refund, swap

MOST = 10_000
"""Refunds that are remembered; of more, the oldest are dropped, and their charges expire by themselves."""
AT_ONCE = 100
TOGETHER = 32
"""Of one counter, in one exchange."""
PATIENT_TRIES = 1_000
LOOK_SECONDS = 0.005
EXIT_SECONDS = 1.0
"""At the end of a process, for all stores together."""


class PendingRefund(NamedTuple):
    key: bytes
    meter: CounterSpec
    part: Part
    now: int | None
    """The time that the caller gave; None: the server's."""
    expires: float
    """When the charge no longer counts, by the monotonic clock."""


class Attempt(NamedTuple):
    """Refunds to one counter that are carried out together."""

    pending: list[PendingRefund]
    refund: Refund

    def start(self, server: Any, waiting: TimeLeft, asking: bool = False) -> Exchange:
        first = self.pending[0]
        keys, meters = [first.key], [first.meter]
        return swap(server.clock, keys, meters, self.refund, first.now, waiting, asking)


class PendingRefunds:
    """Added to by requests, taken by background threads: each step is a single operation on a deque, which needs no lock."""

    def __init__(self, when_done: Callable[[bytes], object]) -> None:
        """`when_done` is called with the key of a counter that was refunded."""
        self._pending: deque[PendingRefund] = deque(maxlen=MOST)
        self._under_way = 0
        self._when_done = when_done
        self.when_added: Callable[[bytes], None] = lambda _: None
        """Called with the key of the counter."""
        self._pid = getpid()
        _all.add(self)

    def __bool__(self) -> bool:
        return bool(self._pending)

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, key: bytes, meter: CounterSpec, part: Part, now: int | None) -> None:
        left_us = expiry_us(meter, part.at)
        if left_us > 0:
            expires = monotonic() + left_us / 1_000_000
            self._pending.append(PendingRefund(key, meter, part, now, expires))
            self.when_added(key)

    def take(self, belongs: Callable[[bytes], bool]) -> list[Attempt]:
        """Some that belong to one server, by counter. They come back by `conclude`."""
        by_counter: dict[tuple[bytes, str, int | None], list[PendingRefund]] = {}
        taken = 0
        for _ in range(len(self._pending)):
            if taken == AT_ONCE:
                break
            try:
                one = self._pending.popleft()
            except IndexError:
                break
            if one.expires <= monotonic():
                continue
            if belongs(one.key):
                taken += 1
                by_counter.setdefault((one.key, one.meter.id, one.now), []).append(one)
            else:
                self._pending.append(one)
        attempts = [
            Attempt(some, Refund(some[0].meter, [one.part for one in some], PATIENT_TRIES))
            for together in by_counter.values()
            for some in (
                together[first : first + TOGETHER] for first in range(0, len(together), TOGETHER)
            )
        ]
        self._under_way += len(attempts)
        return attempts

    def conclude(self, attempt: Attempt, answer: Any) -> bool:
        """Whether it was carried out or is given up; what was not done is pending again."""
        self._under_way -= 1
        if may_be_tried_again(attempt.refund, answer):
            self._pending.extend(attempt.pending)
            return False
        self._when_done(attempt.pending[0].key)
        return True

    @property
    def is_waited_for(self) -> bool:
        """Whether a thread of this process has refunds to carry out."""
        return self._pid == getpid() and (bool(self._pending) or self._under_way > 0)


def may_be_tried_again(refund: Refund, answer: Any) -> bool:
    """Whether it is certain that nothing was refunded, and may be refunded later."""
    if not isinstance(answer, Failure):
        return False
    if isinstance(answer, UnknownOutcome):
        # Giving a place back twice does no harm.
        return not refund.may_be_written or uses_slots(refund.meter.algorithm)
    return isinstance(answer, Contended) or not isinstance(answer, BadCounter)


def expiry_us(meter: CounterSpec, at: int) -> int:
    """For how long a charge counts at most that was made at `at`: as long as a full counter."""
    _, outcome = meter.decide(None, meter.params, meter.params.limit, at)
    return outcome[3]


_all: WeakSet[PendingRefunds] = WeakSet()


@atexit.register
def _finish() -> None:
    end = monotonic() + EXIT_SECONDS
    while any(refunds.is_waited_for for refunds in list(_all)) and monotonic() < end:
        time.sleep(LOOK_SECONDS)
