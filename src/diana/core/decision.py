"""What a limiter answers: a value that is true or false by itself and knows the caller's next question.

The algorithm answers with an `Outcome`, five whole numbers. The store that asked it signs them with who, how much and
when, and that is a `Decision`. The pair is nested rather than flat because building it is a third of the cost of a `take`.
"""

from __future__ import annotations

from typing import NamedTuple

NEVER = -1
"""As `retry_after_us`: the cost is above what can ever pass."""
UNKNOWN = -2
"""As `retry_after_us`: it passes as soon as a place is given back, and nobody knows when that is."""


class Outcome(NamedTuple):
    """May it pass? In whole numbers, the same in Python, Lua and C. Algorithms may return it as a plain tuple."""

    allowed: bool
    remaining: int
    retry_after_us: int
    """Denied: until the same charge passes. Allowed: until more than `remaining` would pass; 0 if nothing is used, or if it follows from
    the other numbers and the limit."""
    reset_after_us: int
    delay_us: int


class Decision(NamedTuple):
    """May it pass, and if not, when?

    Ten per second, the eleventh in the same instant: `allowed` False, `limit` 10, `remaining` 0, `retry_after` 0.1 (then one
    passes), `reset_after` 1.0 (then it is as if nobody had ever asked), `delay` 0.0.
    """

    outcome: tuple[bool, int, int, int, int]
    limit: int
    """The most that can pass in one instant."""
    key: str
    cost: int
    at: int
    """When it was decided: whole microseconds of the store's clock."""
    degraded: bool = False
    """Decided here although the store should have been asked: it was out of reach."""

    def __bool__(self) -> bool:
        return self.outcome[0]

    def __repr__(self) -> str:
        shown = (
            "allowed",
            "limit",
            "remaining",
            "retry_after",
            "reset_after",
            "delay",
            "key",
            "cost",
            "at",
        )
        facts = [f"{name}={getattr(self, name)!r}" for name in shown]
        return f"Decision({', '.join(facts)}{', degraded=True' if self.degraded else ''})"

    @property
    def allowed(self) -> bool:
        return self.outcome[0]

    @property
    def remaining(self) -> int:
        """How much more would pass at this instant."""
        return self.outcome[1]

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same charge passes: 0.0 if it did. None if no time can be told: it is `never`, or when a place is free."""
        allowed, _, micros, _, _ = self.outcome
        return 0.0 if allowed else None if micros < 0 else micros / 1_000_000

    @property
    def more_after(self) -> float | None:
        """Seconds until more than `remaining` would pass, of an allowed charge (sliding window and sliding log only). Else None."""
        allowed, _, micros, _, _ = self.outcome
        return micros / 1_000_000 if allowed and micros else None

    @property
    def never(self) -> bool:
        """The cost is above what can ever pass: trying again is in vain."""
        return self.outcome[2] == NEVER

    @property
    def reset_after(self) -> float:
        """Seconds until the key is as if it had never been seen."""
        return self.outcome[3] / 1_000_000

    @property
    def delay(self) -> float:
        """Seconds an admitted request has to wait in the queue (leaky bucket only)."""
        return self.outcome[4] / 1_000_000


class JointDecision(Decision):
    """Of several limits that are asked as one. Equal to a Decision with the same fields."""

    parts: tuple[Decision, ...] = ()
    """Of each limit; needed to refund what it was charged."""


def tightest(decisions: list[Decision]) -> Decision:
    """Several limits asked as one: denied if any denies, and the numbers of the most restrictive."""
    if len(decisions) == 1:
        return decisions[0]
    allowed = all(decisions)
    closest = min(decisions, key=lambda decision: decision.remaining)
    retries = [decision.outcome[2] for decision in decisions if not decision]
    outcome = (
        allowed,
        closest.remaining,
        # One that never passes before one that nobody knows of, before the longest.
        next((sign for sign in (NEVER, UNKNOWN) if sign in retries), max(retries, default=0)),
        max(decision.outcome[3] for decision in decisions),
        max(decision.outcome[4] for decision in decisions) if allowed else 0,
    )
    joint = JointDecision(*closest._replace(outcome=outcome))
    joint.parts = tuple(decisions)
    return joint
