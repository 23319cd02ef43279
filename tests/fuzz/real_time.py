"""Histories without a fake clock: each store looks at its own, and keys expire by themselves.

Many histories go side by side: where the clock would move, all of them pause together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from diana import ConfigError, Guard, Limiter, Verdict, load_rules
from diana.core.decision import Decision
from tests.fuzz.back_ends import BackEnd, BackEnds
from tests.fuzz.checked_store import CheckedStore
from tests.fuzz.findings import Finding
from tests.fuzz.guards import (
    Check,
    Edit,
    Forget,
    GuardHistory,
    Look,
    RefundRequest,
    Release,
    RemoveOverride,
    SetOverride,
    Settle,
)
from tests.fuzz.limiters import KEYS, LimiterHistory, Peek, Refund, Reset, Take

PAUSES = (0.01, 0.3, 1.2, 0.05, 0.7)
"""Seconds. One is longer than a key lives in Redis after it is as good as new."""


class PlayedOtherwise(Exception):
    """Names the history that failed, but no step: in real time it may be another one each time."""

    def __init__(self, history: Any, back_end: str, finding: Finding) -> None:
        self.history = history
        super().__init__(f"{back_end}: {finding}")


def play(histories: Sequence[Any], back_ends: BackEnds) -> None:
    """Raise a PlayedOtherwise if a back end decides otherwise than its model."""
    running = [
        (history, one, _player(history, one, back_ends.next_namespace()))
        for history in histories
        for one in back_ends.others
    ]
    for part, pause in enumerate((*PAUSES, 0.0)):
        for history, back_end, player in running:
            try:
                player.play(part)
            except Finding as finding:
                raise PlayedOtherwise(history, back_end.name, finding) from None
        time.sleep(pause)
    for _, back_end, player in running:
        back_end.compared.in_real_time += sum(store.decisions for store in player.stores)


def _player(history: Any, back_end: BackEnd, namespace: str) -> _Player:
    try:
        if isinstance(history, LimiterHistory):
            return _Limiters(history, back_end, namespace)
        return _Guard(history, back_end, namespace)
    except ConfigError:
        return _Player((), back_end)


def _parts(steps: Sequence[Any]) -> Iterator[list[Any]]:
    """Between two moves of the clock."""
    part: list[Any] = []
    for step in steps:
        if type(step).__name__.startswith(("Advance", "Move")):
            yield part
            part = []
        else:
            part.append(step)
    yield part


class _Player:
    """One history on one back end."""

    def __init__(self, steps: Sequence[Any], back_end: BackEnd) -> None:
        self._parts = list(_parts(steps))
        self.stores = [CheckedStore(back_end.name, one) for one in (back_end.store, back_end.local)]
        self._allowed: list[Any] = []

    def play(self, part: int) -> None:
        for step in self._parts[part] if part < len(self._parts) else ():
            with suppress(ConfigError):  # of a rule that there is no longer, for example
                self._take_step(step)

    def _take_step(self, step: Any) -> None:
        raise NotImplementedError

    def _note(self, said: Decision | Verdict, of: Any) -> None:
        if said:
            self._allowed.append((of, said))


class _Limiters(_Player):
    def __init__(self, history: LimiterHistory, back_end: BackEnd, namespace: str) -> None:
        super().__init__(history.steps, back_end)
        self._limiters = [
            Limiter(
                limits.spelling,
                algo=limits.algo,
                store=self.stores[0],
                name=f"{namespace} {limits.name}",
                **limits.options,
            )
            for limits in history.limiters
        ]

    def _take_step(self, step: Any) -> None:
        match step:
            case Take(number, key, cost):
                limiter = self._limiters[number]
                self._note(limiter.take(KEYS.get(key, key), cost), limiter)
            case Peek(number, key):
                self._limiters[number].peek(KEYS.get(key, key))
            case Reset(number, key):
                self._limiters[number].reset(KEYS.get(key, key))
            case Refund(back) if back < len(self._allowed):
                limiter, decision = self._allowed.pop(-1 - back)
                limiter.refund(decision)


class _Guard(_Player):
    def __init__(self, history: GuardHistory, back_end: BackEnd, namespace: str) -> None:
        super().__init__(history.steps, back_end)
        self._namespace = namespace
        store, local = self.stores if history.apart else (self.stores[0], self.stores[0])
        self._guard = Guard(self._policy(history.rules), store, local_store=local)

    def _policy(self, rules: dict[str, Any]) -> Any:
        return load_rules({"namespace": self._namespace, **rules})

    def _take_step(self, step: Any) -> None:
        guard = self._guard
        match step:
            case Check(sent):
                self._note(guard.check(sent.request()), None)
            case Look(sent):
                guard.peek(sent.request())
            case Forget(sent, rule):
                guard.reset(sent.request(), rule)
            case Edit(rules):
                guard._evaluator.swap(self._policy(rules))
            case RefundRequest(back) if back < len(self._allowed):
                guard.refund(self._allowed.pop(-1 - back)[1])
            case Settle(back, status) if back < len(self._allowed):
                guard.settle(self._allowed.pop(-1 - back)[1], status=status)
            case Release(back) if back < len(self._allowed):
                guard.release(self._allowed[-1 - back][1])
            case RemoveOverride(rule, value):
                guard.remove_override(rule, value)
            case SetOverride(rule, value, rpu, burst, seconds):
                until = None if seconds is None else time.time() + seconds
                guard.override(rule, value, rpu=rpu, burst=burst, until=until)
