"""All rules, by request: `Guard` and `AsyncGuard`, two shells around one evaluator; they differ by an `await`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

from diana.core.contracts import Client, Clock, Observer, Store
from diana.core.drive import adrive, drive
from diana.core.errors import ConfigError, shown
from diana.core.node_share import Share
from diana.core.policy import Policy
from diana.core.request import Request
from diana.core.verdict import Verdict
from diana.engine.background_refunds import AsyncioRefundQueue, ThreadRefundQueue
from diana.engine.evaluator import Evaluator
from diana.engine.override_arguments import override_from_arguments
from diana.engine.shared_parts import SharedParts
from diana.rules.loading import load_rules
from diana.rules.watch.live_rules import LiveRules
from diana.rules.watch.rules_health import Problem
from diana.shedding.gauge import GaugeState
from diana.shedding.sampling import ProcessActivity
from diana.slots.acquired_slots import AcquiredSlots
from diana.slots.slot_renewer import aflush, flush
from diana.slots.wait_queue import AwaitTurn, Sleep, TaskTicket, ThreadTicket, Timer
from diana.slots.waiting import CheckAgain, QueueLimits, line_of_denial, wait_for_slot
from diana.stores import asynchronous


class _PolicyGuard:
    """What `Guard` and `AsyncGuard` have in common."""

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
        if not isinstance(policy, Policy):
            raise ConfigError(_no_policy(type(self).__name__, policy))
        parts = SharedParts.opened(policy, store, clock, observers, local_store)
        evaluator = Evaluator(policy, parts)
        evaluator.start_shedding()
        self._begin(evaluator)

    def _begin(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._live: LiveRules | None = None
        if type(self).check is Guard.check:
            # One or two calls less on every request.
            self.check = evaluator.check if evaluator.observers else evaluator.evaluate

    @classmethod
    def from_file(
        cls,
        path: str | Path | Mapping[str, Any],
        store: str | Store | Client | None = None,
        *,
        local_store: str | Store | None = None,
        clock: Clock | None = None,
        observers: Sequence[str | Observer] = (),
    ) -> Self:
        """The rules of a file or a URL, and every change of them; `store` and `local_store` win over the file's.

        A mapping holds the rules themselves: they do not change.
        """
        if isinstance(path, Mapping):
            policy = load_rules(path)
            if policy.settings.rules_from is not None:
                raise ConfigError(
                    "rules_from must stand in a file, whose changes are followed (got a mapping); "
                    f'write {cls.__name__}.from_file("diana.yaml")'
                )
            return cls(policy, store, local_store=local_store, clock=clock, observers=observers)
        if not isinstance(path, str | Path):
            raise ConfigError(
                f"rules must be the path of a file, a URL or a mapping (got {shown(path)}); "
                f'write {cls.__name__}.from_file("diana.yaml")'
            )
        live = LiveRules(path)
        try:
            guard = cls(
                live.policy, store, local_store=local_store, clock=clock, observers=observers
            )
        except BaseException:
            live.close()
            raise
        guard._live = live
        live.follow(guard._evaluator.swap)
        guard._evaluator.threads.follow = live.ensure
        return guard

    @classmethod
    def beside(cls, guard: Guard | AsyncGuard, policy: Policy) -> Self:
        """Other rules that count where those of a guard do, on its clock and with its observers; that guard closes the stores."""
        made = cls.__new__(cls)
        made._begin(guard._evaluator.sharing_stores(policy))
        return made

    def _accept_rules_if(self, check: Callable[[Policy], None]) -> None:
        """`check` raises ConfigError for rules that cannot be used here: now, and after each edit, which then is refused."""
        check(self._evaluator.policy)
        self._evaluator.accept = check

    def _abandon(self) -> None:
        """Close what was opened, before any request was checked."""
        self._stop_following()
        for store in self._evaluator.owned:
            store.close()

    @property
    def is_observed(self) -> bool:
        """Whether anything observes its verdicts."""
        return bool(self._evaluator.observers)

    @property
    def has_shared_store(self) -> bool:
        """Rules of scope global count in a store of their own."""
        return not self._evaluator.one_store

    @property
    def share(self) -> Share:
        """This node's part of every limit of scope divided, as it is now."""
        return self._evaluator.parts.shares.share

    @property
    def zone_name(self) -> str | None:
        """The name of the shared memory in which rules of scope local count; None if they count in this process."""
        return getattr(self._evaluator.local, "zone_name", None)

    @property
    def counts_for_machine(self) -> bool:
        """Rules of scope local count for all processes of this machine together."""
        return self._evaluator.local.shared

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with where the rules come from; empty if nothing is."""
        self._evaluator.threads.enter_process()
        return () if self._live is None else self._live.problems

    def _stop_following(self) -> None:
        self._evaluator.threads.close()
        if self._live is not None:
            self._live.close()

    @property
    def policy(self) -> Policy:
        self._evaluator.threads.enter_process()
        return self._evaluator.policy

    def override(
        self,
        rule: str,
        value: str,
        *,
        rpu: int,
        burst: int | None = None,
        until: float | datetime | None = None,
    ) -> None:
        """Other numbers for one value of a rule's actor, in this process, until a moment in seconds since the epoch or with a timezone."""
        self._evaluator.override(rule, value, override_from_arguments(rpu, burst, until))

    def remove_override(self, rule: str, value: str) -> None:
        """The rule's own numbers hold again. One of the rules file or of the store stays."""
        self._evaluator.override(rule, value, None)

    def keep_slots(self, verdict: Verdict) -> AcquiredSlots:
        """`with guard.keep_slots(verdict):` renews the slots of an allowed request while it runs, and releases them."""
        return self._evaluator.refunds.keep_slots(verdict)

    @property
    def expired_slots(self) -> int:
        """Places that ran off while their request still ran: so often there may have been one more inside than `most` says."""
        return self._evaluator.expired_slots

    @property
    def activity(self) -> ProcessActivity | None:
        """What the middleware tells of every request that it lets in; None: no factor of `shed` asks."""
        return self._evaluator.threads.activity

    def in_flight(self) -> AbstractContextManager[None]:
        """`with guard.in_flight():` around a request that was let in, for the factor `inflight`. The middleware does so by itself."""
        activity = self._evaluator.threads.activity
        return nullcontext() if activity is None else activity.inside()

    @property
    def factors(self) -> list[GaugeState]:
        """The factors of `shed` as they are now in this process."""
        self._evaluator.threads.enter_process()
        return self._evaluator.threads.factors()

    @property
    def clock(self) -> Clock | None:
        """Delays (`verdict.delay`) are waited out on this clock; None: on the real one."""
        return self._evaluator.clock

    @property
    def identity_errors(self) -> int:
        """How often finding an identity failed; such requests are limited as `missing` says."""
        return self._evaluator.identity_errors

    @property
    def function_errors(self) -> int:
        """How often a function of `policy.with_functions` failed; such requests are decided without it."""
        return self._evaluator.function_errors


def _no_policy(guard: str, value: object) -> str:
    got, write = shown(value), f'{guard}.from_file("diana.yaml")'
    if isinstance(value, str | Path):
        got, write = shown(str(value)), f"{guard}.from_file({str(value)!r})"
    elif isinstance(value, Mapping):
        got, write = "a mapping", f"{guard}(load_rules(...)) with the mapping in it"
    return f"{guard}: policy must be a Policy (got {got}); write {write}"


class Guard(_PolicyGuard):
    """`Guard.from_file("diana.yaml").check(request)` is true if every rule lets it pass."""

    @cached_property
    def _later(self) -> ThreadRefundQueue:
        return ThreadRefundQueue()

    def check(self, request: Request) -> Verdict:
        """Whether every rule lets the request pass; if one denies, none is charged."""
        return self._evaluator.check(request)

    def refund(self, verdict: Verdict) -> None:
        """Take back what an allowed request was charged, as far as it still counts."""
        for refund in self._evaluator.refunds.refunds(verdict):
            refund.perform()

    def release(self, verdict: Verdict) -> None:
        """The request is done: give back the places that it took (`algo: C`). Done twice, it is done once."""
        for refund in self._evaluator.refunds.releases(verdict):
            refund.perform()
        self._evaluator.refunds.wake(verdict)

    def wait(self, request: Request) -> Verdict:
        """`check`; where a rule says so (`max_wait`), it waits for a place, first come, first served."""
        evaluator = self._evaluator
        line, verdict = evaluator.queue_ahead(request), None
        if line is None:
            verdict = evaluator.evaluate(request)
            line = line_of_denial(verdict)
            if line is None:
                return evaluator.notify(verdict)
        timer = Timer(evaluator.clock)
        verdict = verdict or self.peek(request)
        steps = wait_for_slot(evaluator.queues, timer, ThreadTicket(), line, request, verdict)
        return evaluator.notify(drive(steps, partial(self._perform, timer)))

    def _perform(self, timer: Timer, step: CheckAgain | Sleep | AwaitTurn) -> Any:
        match step:
            case CheckAgain(request):
                return self._evaluator.evaluate(request)
            case Sleep(seconds):
                return timer.sleep(seconds)
            case AwaitTurn(ticket, seconds):
                return ticket.wait(seconds)

    def settle(self, verdict: Verdict, *, status: int) -> None:
        """The answer has this status: rules that do not charge it (`charge_on`) give their charge back. Once per verdict."""
        for refund in self._evaluator.refunds.settlements(verdict, status):
            refund.perform()

    def settle_later(self, verdict: Verdict, *, status: int) -> None:
        """The same, without making an answer wait for a store that is elsewhere."""
        for refund in self._evaluator.refunds.settlements(verdict, status):
            if hasattr(refund.store, "asynchronous"):
                self._later.put(refund.perform)
            else:
                refund.perform()

    def peek(self, request: Request) -> Verdict:
        """What `check` would say; nothing is charged, and observers are not told."""
        plan = self._evaluator.plan_peek(request)
        decisions = [store.peek([charge], plan.now)[0] for store, charge in plan.asked]
        return plan.verdict(decisions)

    def reset(self, request: Request, rule: str | None = None) -> None:
        """Forget what was counted by the keys of this request: for all rules it meets, or for one."""
        for store, meter, key in self._evaluator.counters(request, rule):
            store.reset(meter, key)

    def close(self) -> None:
        """Close the stores that this guard opened, and follow its rules no longer."""
        self._stop_following()
        self._later.close()
        if self.has_shared_store:
            flush()
        self._evaluator.parts.counts()  # the last numbers, for observers
        for store in self._evaluator.owned:
            store.close()


class AsyncGuard(_PolicyGuard):
    """`Guard` for coroutines: `verdict = await guard.check(request)`."""

    @cached_property
    def _later(self) -> AsyncioRefundQueue:
        return AsyncioRefundQueue()

    async def check(self, request: Request) -> Verdict:
        """Whether every rule lets the request pass; if one denies, none is charged."""
        return await self._evaluator.acheck(request)

    async def refund(self, verdict: Verdict) -> None:
        """Take back what an allowed request was charged, as far as it still counts."""
        for refund in self._evaluator.refunds.refunds(verdict):
            await refund.aperform()

    async def release(self, verdict: Verdict) -> None:
        """The request is done: give back the places that it took (`algo: C`). Done twice, it is done once."""
        for refund in self._evaluator.refunds.releases(verdict):
            await refund.aperform()
        self._evaluator.refunds.wake(verdict)

    async def wait(self, request: Request) -> Verdict:
        """`check`; where a rule says so (`max_wait`), it waits for a place, first come, first served."""
        verdict, line = await self._begin_wait(request)
        return verdict if line is None else await self._end_wait(request, verdict, line)

    async def _begin_wait(self, request: Request) -> tuple[Verdict, QueueLimits | None]:
        """Without waiting: the verdict, and the line to stand in, if there is one; observers are then not told yet."""
        evaluator = self._evaluator
        line = evaluator.queue_ahead(request)
        if line is not None:
            return await self.peek(request), line
        verdict = await evaluator.aevaluate(request)
        line = line_of_denial(verdict)
        return (evaluator.notify(verdict), None) if line is None else (verdict, line)

    async def _end_wait(self, request: Request, verdict: Verdict, line: QueueLimits) -> Verdict:
        evaluator = self._evaluator
        timer = Timer(evaluator.clock)
        steps = wait_for_slot(evaluator.queues, timer, TaskTicket(), line, request, verdict)
        return evaluator.notify(await adrive(steps, partial(self._perform, timer)))

    async def _perform(self, timer: Timer, step: CheckAgain | Sleep | AwaitTurn) -> Any:
        match step:
            case CheckAgain(request):
                return await self._evaluator.aevaluate(request)
            case Sleep(seconds):
                return await timer.asleep(seconds)
            case AwaitTurn(ticket, seconds):
                return await ticket.wait(seconds)

    async def settle(self, verdict: Verdict, *, status: int) -> None:
        """The answer has this status: rules that do not charge it (`charge_on`) give their charge back. Once per verdict."""
        for refund in self._evaluator.refunds.settlements(verdict, status):
            await refund.aperform()

    async def settle_later(self, verdict: Verdict, *, status: int) -> None:
        """The same, without making an answer wait for a store that is elsewhere."""
        for refund in self._evaluator.refunds.settlements(verdict, status):
            if hasattr(refund.store, "asynchronous"):
                self._later.put(refund.aperform)
            else:
                refund.perform()

    async def peek(self, request: Request) -> Verdict:
        """What `check` would say; nothing is charged, and observers are not told."""
        plan = self._evaluator.plan_peek(request)
        decisions = [
            (await asynchronous(store).peek([charge], plan.now))[0] for store, charge in plan.asked
        ]
        return plan.verdict(decisions)

    async def reset(self, request: Request, rule: str | None = None) -> None:
        """Forget what was counted by the keys of this request: for all rules it meets, or for one."""
        for store, meter, key in self._evaluator.counters(request, rule):
            await asynchronous(store).reset(meter, key)

    async def close(self) -> None:
        """Close the stores that this guard opened, and follow its rules no longer."""
        self._stop_following()
        await self._later.close()
        if self.has_shared_store:
            await aflush()
        self._evaluator.parts.counts()  # the last numbers, for observers
        for store in self._evaluator.owned:
            await asynchronous(store).close()
