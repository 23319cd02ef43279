"""All rules, by request: `Guard` and `AsyncGuard`, two shells around the judge that differ by an `await`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from diana.core.contracts import Clock, Observer, Store
from diana.core.policy import Policy
from diana.core.request import Request
from diana.core.verdict import Verdict
from diana.judge import Judge
from diana.sources.file import load_rules


class _Guarding:
    """What both shells are made of; they differ by an `await`."""

    check: Any

    def __init__(
        self,
        policy: Policy,
        store: str | Store | None = None,
        *,
        clock: Clock | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._judge = Judge(policy, store, clock, observers)
        if type(self).check is Guard.check:
            self.check = self._judge.check  # one call less on every request

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        store: str | Store | None = None,
        *,
        clock: Clock | None = None,
        observers: Sequence[Observer] = (),
    ) -> Self:
        """The rules of a file; `store` wins over the file's."""
        return cls(load_rules(path), store, clock=clock, observers=observers)

    @property
    def policy(self) -> Policy:
        return self._judge.policy

    @property
    def clock(self) -> Clock | None:
        """Who is held (`verdict.delay`) is held by this clock; None: by the real one."""
        return self._judge.clock

    @property
    def identity_errors(self) -> int:
        """How often finding an identity failed; such requests are limited as `missing` says."""
        return self._judge.identity_errors


class Guard(_Guarding):
    """`Guard.from_file("diana.yaml").check(request)` is true if every rule lets it pass."""

    def check(self, request: Request) -> Verdict:
        """Whether every rule lets the request pass; if one denies, none is charged."""
        return self._judge.check(request)

    def refund(self, verdict: Verdict) -> None:
        """Take back what an allowed request was charged, as far as it still counts."""
        self._judge.refund(verdict)

    def close(self) -> None:
        """Close the stores that this guard opened."""
        self._judge.close()


class AsyncGuard(_Guarding):
    """`Guard` for coroutines: `verdict = await guard.check(request)`."""

    async def check(self, request: Request) -> Verdict:
        """Whether every rule lets the request pass; if one denies, none is charged."""
        return self._judge.check(request)

    async def refund(self, verdict: Verdict) -> None:
        """Take back what an allowed request was charged, as far as it still counts."""
        self._judge.refund(verdict)

    async def close(self) -> None:
        """Close the stores that this guard opened."""
        self._judge.close()
