"""What an event loop waits for: a call that is under way, and the tasks that want to know what it comes to."""

from __future__ import annotations

import asyncio
from typing import Any

from diana.stores.redis.protocol.batch import (
    Batch,
    answer_of,
)
from diana.stores.redis.protocol.commands import Exchange

AnswerFuture = asyncio.Future[Any]


class InFlightCall:
    """A batch or another exchange that waits for replies."""

    __slots__ = (
        "_waits",
        "batch",
        "counters",
        "deadline",
        "replies",
        "sent",
        "steps",
    )

    def __init__(
        self, deadline: float, counters: int, batch: Batch | None, waits: AnswerFuture | None
    ) -> None:
        self.deadline = deadline
        """By the line's clock."""
        self.counters = counters
        self.batch = batch
        self._waits = waits
        """Of an exchange that is no batch: its future."""
        self.steps: Exchange | None = None
        """None: a batch of which no more is known than that it was sent."""
        self.replies = 1
        self.sent = 0.0

    def resolve(self, result: Any) -> None:
        if self._waits is not None:
            resolve(self._waits, result)
        if self.batch is not None:
            for place, ask in enumerate(self.batch.asks, 1):
                resolve(ask.waits, answer_of(place, result))

    def resolve_batch(self, said: list[Any]) -> None:
        """The same where the loop runs and the script has answered."""
        at = said[0]
        for place, ask in enumerate(self.batch.asks, 1):  # type: ignore[union-attr]
            if not ask.waits.done():
                ask.waits.set_result((at, said[place]))

    def close(self) -> None:
        if self.steps is not None:
            self.steps.close()


def resolve(answer: AnswerFuture, result: Any) -> None:
    """The task may have been cancelled meanwhile; its charge stands."""
    if not answer.done() and not answer.get_loop().is_closed():
        answer.set_result(result)
