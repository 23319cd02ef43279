"""All rules, by request: `Guard` and `AsyncGuard`, two shells around the judge that differ by an `await`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

from diana.core.contracts import Client, Clock, Observer, Store
from diana.core.division import Share
from diana.core.policy import Policy
from diana.core.request import Request
from diana.core.terms import Override
from diana.core.verdict import Verdict
from diana.judge import Judge
from diana.shedding.activity import ProcessActivity
from diana.shedding.gauge import GaugeState
from diana.sources.following.live import LiveRules
from diana.sources.following.problems import Problem
from diana.stores import asynchronous
from diana.stores.later import LaterInLoop, LaterInThread


class _PolicyGuard:
    """What both shells are made of; they differ by an `await`."""

    check: Any

    def __init__(
        self,
        policy: Policy,
        store: str | Store | Client | None = None,
        *,
        local_store: str | Store | None = None,
        clock: Clock | None = None,
        observers: Sequence[str | Observer] = (),
    ) -> None:
        self._begin(Judge(policy, store, clock, observers, local_store))

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
        local_store: str | Store | None = None,
        clock: Clock | None = None,
        observers: Sequence[str | Observer] = (),
    ) -> Self:
        """The rules of a file or a URL, and every change of them; `store` and `local_store` win over the file's."""
        live = LiveRules(path)
        try:
            guard = cls(
                live.policy, store, local_store=local_store, clock=clock, observers=observers
            )
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
    def share(self) -> Share:
        """This node's part of every limit of scope divided, as it is now."""
        return self._judge.shares.share

    @property
    def counts_for_machine(self) -> bool:
        """Rules of scope local count for all processes of this machine together."""
        return self._judge.local.shared

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with where the rules come from; empty if nothing is."""
        self._judge.enter_process()
        return () if self._live is None else self._live.problems

    def _stop_following(self) -> None:
        self._judge.close()
        if self._live is not None:
            self._live.close()

    @property
    def policy(self) -> Policy:
        self._judge.enter_process()
        return self._judge.policy

    def override(
        self,
        rule: str,
        value: str,
        *,
        rpu: int,
        burst: int | None = None,
        until: float | None = None,
    ) -> None:
        """Other numbers for one value of a rule's actor, in this process, until a moment in seconds since the epoch."""
        until_us = None if until is None else int(until * 1_000_000)
        self._judge.override(rule, value, Override(rpu, burst, until_us))

    def remove_override(self, rule: str, value: str) -> None:
        """The rule's own numbers hold again. One of the rules file or of the store stays."""
        self._judge.override(rule, value, None)

    @property
    def activity(self) -> ProcessActivity | None:
        """What the middleware tells of every request that it lets in; None: no factor of `shed` asks."""
        return self._judge.activity

    def inside(self) -> AbstractContextManager[None]:
        """`with guard.inside():` around a request that was let in, for the factor `inflight`. The middleware does so by itself."""
        activity = self._judge.activity
        return nullcontext() if activity is None else activity.inside()

    @property
    def factors(self) -> list[GaugeState]:
        """The factors of `shed` as they are now in this process."""
        self._judge.enter_process()
        return self._judge.factors()

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

    @cached_property
    def _later(self) -> LaterInThread:
        return LaterInThread()

    def check(self, request: Request) -> Verdict:
        """Whether every rule lets the request pass; if one denies, none is charged."""
        return self._judge.check(request)

    def refund(self, verdict: Verdict) -> None:
        """Take back what an allowed request was charged, as far as it still counts."""
        for store, verb, args in self._judge.refunds(verdict):
            getattr(store, verb)(*args)

    def settle(self, verdict: Verdict, *, status: int) -> None:
        """The answer has this status: rules that do not charge it (`charge_on`) give their charge back. Once per verdict."""
        for store, verb, args in self._judge.settlements(verdict, status):
            getattr(store, verb)(*args)

    def settle_later(self, verdict: Verdict, *, status: int) -> None:
        """The same, without making an answer wait for a store that is elsewhere."""
        for store, verb, args in self._judge.settlements(verdict, status):
            give_back = partial(getattr(store, verb), *args)
            if hasattr(store, "asynchronous"):
                self._later.put(give_back)
            else:
                give_back()

    def peek(self, request: Request) -> Verdict:
        """What `check` would say; nothing is charged, and observers are not told."""
        look = self._judge.look(request)
        decisions = [store.peek([charge], look.now)[0] for store, charge in look.asked]
        return self._judge.conclude_look(look, decisions, request)

    def reset(self, request: Request, rule: str | None = None) -> None:
        """Forget what was counted by the keys of this request: for all rules it meets, or for one."""
        for store, meter, key in self._judge.counters(request, rule):
            store.reset(meter, key)

    def close(self) -> None:
        """Close the stores that this guard opened, and follow its rules no longer."""
        self._stop_following()
        self._later.close()
        for store in self._judge.owned:
            store.close()


class AsyncGuard(_PolicyGuard):
    """`Guard` for coroutines: `verdict = await guard.check(request)`."""

    @cached_property
    def _later(self) -> LaterInLoop:
        return LaterInLoop()

    async def check(self, request: Request) -> Verdict:
        """Whether every rule lets the request pass; if one denies, none is charged."""
        return await self._judge.acheck(request)

    async def refund(self, verdict: Verdict) -> None:
        """Take back what an allowed request was charged, as far as it still counts."""
        for store, verb, args in self._judge.refunds(verdict):
            await getattr(asynchronous(store), verb)(*args)

    async def settle(self, verdict: Verdict, *, status: int) -> None:
        """The answer has this status: rules that do not charge it (`charge_on`) give their charge back. Once per verdict."""
        for store, verb, args in self._judge.settlements(verdict, status):
            await getattr(asynchronous(store), verb)(*args)

    async def settle_later(self, verdict: Verdict, *, status: int) -> None:
        """The same, without making an answer wait for a store that is elsewhere."""
        for store, verb, args in self._judge.settlements(verdict, status):
            if hasattr(store, "asynchronous"):
                self._later.put(partial(getattr(asynchronous(store), verb), *args))
            else:
                getattr(store, verb)(*args)

    async def peek(self, request: Request) -> Verdict:
        """What `check` would say; nothing is charged, and observers are not told."""
        look = self._judge.look(request)
        decisions = [
            (await asynchronous(store).peek([charge], look.now))[0] for store, charge in look.asked
        ]
        return self._judge.conclude_look(look, decisions, request)

    async def reset(self, request: Request, rule: str | None = None) -> None:
        """Forget what was counted by the keys of this request: for all rules it meets, or for one."""
        for store, meter, key in self._judge.counters(request, rule):
            await asynchronous(store).reset(meter, key)

    async def close(self) -> None:
        """Close the stores that this guard opened, and follow its rules no longer."""
        self._stop_following()
        await self._later.close()
        for store in self._judge.owned:
            await asynchronous(store).close()
