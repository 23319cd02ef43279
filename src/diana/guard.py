"""All rules, by request: `Guard` and `AsyncGuard`, two shells around the judge that differ by an `await`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from diana.core.contracts import Client, Clock, Observer, Store
from diana.core.policy import Policy
from diana.core.request import Request
from diana.core.verdict import Verdict
from diana.judge import Judge
from diana.sources.following.live import LiveRules
from diana.sources.following.problems import Problem
from diana.stores import asynchronous


class _PolicyGuard:
    """What both shells are made of; they differ by an `await`."""

    check: Any

    def __init__(
        self,
        policy: Policy,
        store: str | Store | Client | None = None,
        *,
        clock: Clock | None = None,
        observers: Sequence[str | Observer] = (),
    ) -> None:
        self._begin(Judge(policy, store, clock, observers))

    def _begin(self, judge: Judge) -> None:
        self._judge = judge
        self._live: LiveRules | None = None
        if type(self).check is Guard.check:
            self.check = self._judge.check  # one call less on every request

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        store: str | Store | Client | None = None,
        *,
        clock: Clock | None = None,
        observers: Sequence[str | Observer] = (),
    ) -> Self:
        """The rules of a file or a URL, and every change of them; `store` wins over the file's."""
        live = LiveRules(path)
        try:
            guard = cls(live.policy, store, clock=clock, observers=observers)
        except BaseException:
            live.close()
            raise
        guard._live = live
        live.follow(guard._judge.swap)
        guard._judge.follow = live.ensure
        return guard

    @classmethod
    def beside(cls, guard: Guard | AsyncGuard, policy: Policy) -> Self:
        """Other rules that count where those of a guard do, on its clock and with its observers; that guard closes the stores."""
        made = cls.__new__(cls)
        made._begin(guard._judge.beside(policy))
        return made

    @property
    def has_shared_store(self) -> bool:
        """Rules of scope global count in a store of their own."""
        return not self._judge.one_store

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with where the rules come from; empty if nothing is."""
        self._judge.enter_process()
        return () if self._live is None else self._live.problems

    def _stop_following(self) -> None:
        if self._live is not None:
            self._live.close()

    @property
    def policy(self) -> Policy:
        self._judge.enter_process()
        return self._judge.policy

    @property
    def clock(self) -> Clock | None:
        """Delays (`verdict.delay`) are waited out on this clock; None: on the real one."""
        return self._judge.clock

    @property
    def identity_errors(self) -> int:
        """How often finding an identity failed; such requests are limited as `missing` says."""
        return self._judge.identity_errors


class Guard(_PolicyGuard):
    """`Guard.from_file("diana.yaml").check(request)` is true if every rule lets it pass."""

    def check(self, request: Request) -> Verdict:
        """Whether every rule lets the request pass; if one denies, none is charged."""
        return self._judge.check(request)

    def refund(self, verdict: Verdict) -> None:
        """Take back what an allowed request was charged, as far as it still counts."""
        for store, verb, args in self._judge.refunds(verdict):
            getattr(store, verb)(*args)

    def close(self) -> None:
        """Close the stores that this guard opened, and follow its rules no longer."""
        self._stop_following()
        for store in self._judge.owned:
            store.close()


class AsyncGuard(_PolicyGuard):
    """`Guard` for coroutines: `verdict = await guard.check(request)`."""

    async def check(self, request: Request) -> Verdict:
        """Whether every rule lets the request pass; if one denies, none is charged."""
        return await self._judge.acheck(request)

    async def refund(self, verdict: Verdict) -> None:
        """Take back what an allowed request was charged, as far as it still counts."""
        for store, verb, args in self._judge.refunds(verdict):
            await getattr(asynchronous(store), verb)(*args)

    async def close(self) -> None:
        """Close the stores that this guard opened, and follow its rules no longer."""
        self._stop_following()
        for store in self._judge.owned:
            await asynchronous(store).close()
