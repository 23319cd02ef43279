"""What the store wants done, and doing it: `send` for threads, `asend` for tasks.

Several jobs at once are sent before any reply is read: to one server on one connection, to several side by side. A job that fails answers
with its Failure; who wants it done decides what that means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from diana.core.errors import DianaError
from diana.redis_client.redis_server import Server
from diana.redis_client.reply_errors import Failure, NoConnection
from diana.redis_client.time_budget import Budget
from diana.stores.redis.app_client import ClientServer
from diana.stores.redis.protocol.batch import DecisionRequest
from diana.stores.redis.protocol.commands import Exchange, acquire

AnyServer = Server | ClientServer

SPENT = NoConnection("the budget is spent")


class AskJob(NamedTuple):
    """Have the script decide one request; answers the time and what it says."""

    server: AnyServer
    ask: DecisionRequest
    asking: bool = False

    def exchange(self, budget: Budget) -> Exchange:
        keys, argv, now = self.ask.keys, self.ask.argv, self.ask.now
        reply = yield from acquire(self.server.clock, keys, argv, now, budget, self.asking)
        return reply[0], reply[1]


class ExchangeJob(NamedTuple):
    """Any other exchange."""

    server: AnyServer
    start: Callable[[AnyServer, Budget, bool], Exchange]
    asking: bool = False

    def exchange(self, budget: Budget) -> Exchange:
        return self.start(self.server, budget, self.asking)


Job = AskJob | ExchangeJob


def send(jobs: Sequence[Job], budget: Budget) -> list[Any]:
    if budget.left <= 0:
        return [SPENT] * len(jobs)
    if len(jobs) == 1:
        (job,) = jobs
        if isinstance(job, AskJob) and not job.asking:
            return [job.server.ask(job.ask, budget)]
    by_server: dict[AnyServer, list[int]] = {}
    for place, job in enumerate(jobs):
        by_server.setdefault(job.server, []).append(place)
    answers: dict[int, Any] = {}
    under_way: list[tuple[list[int], Callable[[], list[Any]]]] = []
    # Always in the same order: two threads that each hold a connection and want the other's would wait in vain.
    for server in sorted(by_server, key=_place):
        places = by_server[server]
        exchanges = [jobs[place].exchange(budget) for place in places]
        try:
            under_way.append((places, server.begin(exchanges, budget)))
        except Failure as failure:
            answers.update(dict.fromkeys(places, failure))
    for places, finish in under_way:
        answers.update(zip(places, finish(), strict=True))
    return [answers[place] for place in range(len(jobs))]


async def asend(jobs: Sequence[Job], budget: Budget) -> list[Any]:
    if budget.left <= 0:
        return [SPENT] * len(jobs)
    loop = running_loop()
    waiting = []
    line = None
    for job in jobs:
        line = job.server.line_of(loop)
        if isinstance(job, AskJob) and not job.asking:
            waiting.append(line.ask(job.ask, budget))
        else:
            waiting.append(line.exchange(job.exchange(budget), budget))
    if line is None:
        return []
    began = line.now()
    answers = [await answer for answer in waiting]
    budget.left -= line.now() - began
    return answers


def running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise DianaError(
            "this store needs a running asyncio event loop; trio and curio have none: use the synchronous Limiter or Guard in a thread"
        ) from None


def _place(server: AnyServer) -> str:
    return str(getattr(server, "endpoint", ""))
