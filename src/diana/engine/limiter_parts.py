"""What `Limiter` and `AsyncLimiter` have in common: the limits of one spelling on one store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diana.core.charge import Charge, charged_at
from diana.core.contracts import Algorithm, AsyncStore, AsyncTake, Client, Clock, Store
from diana.core.counter import CounterSpec, escaped, meter_from_limit
from diana.core.decision import Decision, JointDecision
from diana.core.duration import micros_from_spelling
from diana.core.errors import ConfigError
from diana.core.limit import (
    ConcurrencyLimit,
    Limit,
    checked_places,
    limits_from_spelling,
    uses_slots,
)
from diana.runtime.entry_points import algorithm_from_spelling
from diana.slots.acquired_slots import AcquiredSlots
from diana.slots.slot import HeldSlot, SlotStore, place_name
from diana.slots.wait_queue import (
    Timer,
    WaitQueues,
)
from diana.stores import open_store
from diana.stores.adapters import decide_shielded
from diana.stores.zero import ZeroStore

NAMESPACE = "diana"
DEFAULT_ALGO = "TB"
WHEN_DOWN = ("local", "open", "closed")


class LimiterParts:
    """The limits of one spelling on one store: all that both shells share."""

    def __init__(
        self,
        spelling: str,
        algo: str,
        burst: int | None,
        store: str | Store | Client,
        name: str | None,
        clock: Clock | None,
        when_down: str,
        options: dict[str, Any],
    ) -> None:
        if when_down not in WHEN_DOWN:
            raise ConfigError(f"when_down is {when_down!r}; write one of {', '.join(WHEN_DOWN)}")
        if name is not None and (not isinstance(name, str) or not name):
            raise ConfigError(f"name is {name!r}; write a str that is not empty")
        self.timer = Timer(clock)
        self.owned = isinstance(store, str)
        self.name = name
        self.where = store if isinstance(store, str) else None
        self.store = open_store(store)
        try:
            if name is None and (self.store.shared or not self.owned):
                raise ConfigError("others count in this store too; give the limit a name=")
            named = f"{getattr(self.store, 'namespace', NAMESPACE)}:{escaped(name or 'limit')}"
            self.meters = _meters(spelling, algo, burst, named, when_down, options)
            if any(meter.denies_all for meter in self.meters):
                self.store = ZeroStore(self.store)
        except ConfigError:
            if self.owned:
                self.store.close()
            raise
        self.clock = clock
        self.lines = WaitQueues()
        self.places = None
        if self.uses_slots:
            self.places = SlotStore(self.store, clock, self.lines, self.meters[0])

    @property
    def uses_slots(self) -> bool:
        return uses_slots(self.meters[0].algorithm)

    def line_of(self, key: str) -> str | None:
        """Where one waits for a place of the key; None if there are none."""
        return None if self.places is None else place_name((self.meters[0], key, 1))

    def require_places(self) -> SlotStore:
        if self.places is None:
            raise ConfigError(
                f"{self.meters[0].limit} has no places to give back; write a limit such as '5 at once'"
            )
        return self.places

    def bound_refund(self) -> Callable[[Decision], None] | None:
        """The fast lane for giving a place back; None if the store has none."""
        bind = getattr(self.store, "bind_refund", None)
        if self.places is None or bind is None:
            return None
        meter = self.meters[0]
        give_back, lines = bind(meter, self.clock), self.lines
        algorithm: Any = meter.algorithm
        moment_of, params = algorithm.moment_of, meter.params

        def refund(decision: Decision) -> None:
            """Give the place back, once. A denial has nothing to give back."""
            outcome, _, key, cost, at, _ = decision
            if outcome[0] and cost:
                give_back(key, cost, moment_of(params, outcome, at))
                if lines.are_used:
                    lines.wake(place_name((meter, key, cost)))

        return refund

    def keep_slots(self, decision: Decision) -> AcquiredSlots:
        """The place that was taken, to be renewed and given back."""
        account = self.places or self.require_places()
        outcome, _, key, cost, at, degraded = decision
        if not outcome[0] or not cost:
            return AcquiredSlots([])
        meter = self.meters[0]
        algorithm: Any = meter.algorithm
        moment = algorithm.moment_of(meter.params, outcome, at)
        return AcquiredSlots([HeldSlot(account, (meter, key, cost), moment, degraded)])

    def take_though_cancelled(self, store: AsyncStore, take: AsyncTake) -> AsyncTake:
        """Who is cancelled while the store is asked may have got a place: it is given back."""
        if not hasattr(self.store, "asynchronous"):
            return take
        meter, clock = self.meters[0], self.clock

        async def taking(key: str, cost: int = 1) -> Decision:
            """Charge the key; the Decision is true if it may pass."""
            charges, now = [(meter, key, cost)], clock and clock()
            return (await decide_shielded(store, charges, now, self._give_back))[0]

        return taking

    def _give_back(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            self.keep_slots(decision).release()

    def charges_for(self, key: str, cost: int) -> tuple[list[Charge], int | None]:
        """What a store takes: the charges, and the time if there is a clock of our own."""
        return [Charge(meter, key, cost) for meter in self.meters], self.now()

    def refunds(self, decision: Decision) -> list[tuple[bool, list[Charge], int]]:
        """What a store is to refund: whether it was decided without the server, the charges, and the moment at which they were made."""
        parts: tuple[Decision, ...] = (decision,) * len(self.meters)
        if isinstance(decision, JointDecision) and decision.parts:
            parts = decision.parts
        together: dict[tuple[bool, int], list[Charge]] = {}
        for meter, part in zip(self.meters, parts, strict=True):
            made = part.degraded, charged_at(meter, part)
            charge = Charge(meter, decision.key, decision.cost)
            together.setdefault(made, []).append(charge)
        return [(degraded, charges, at) for (degraded, at), charges in together.items()]

    def now(self) -> int | None:
        return None if self.clock is None else self.clock()

    def shown_as(self, kind: str) -> str:
        """How a limiter looks in a debugger; without what may be secret in a URL."""
        from diana.rules.backends.server_list import shown_url

        limits = "; ".join(str(meter.limit) for meter in self.meters)
        store = type(self.store).__name__ if self.where is None else repr(shown_url(self.where))
        algo = self.meters[0].algorithm.code
        named = "" if self.name is None else f", name={self.name!r}"
        return f"{kind}({limits!r}, algo={algo!r}, store={store}{named})"


def _meters(
    spelling: str,
    algo: str,
    burst: int | None,
    name: str,
    when_down: str,
    options: dict[str, Any],
) -> list[CounterSpec]:
    algorithm = algorithm_from_spelling(algo)
    if burst is not None:
        options = {**options, "burst": burst}
    limits = limits_from_spelling(spelling)
    if any(isinstance(limit, ConcurrencyLimit) for limit in limits) or uses_slots(algorithm):
        return [_meter_of_places(spelling, limits, algorithm, name, when_down, options)]
    meters = [meter_from_limit(name, limit, algorithm, options, when_down) for limit in limits]
    if len({meter.id for meter in meters}) < len(meters):
        raise ConfigError(f"{spelling!r} limits one unit twice, in one counter; keep the tighter")
    return meters


def _meter_of_places(
    spelling: str,
    limits: list[Limit],
    algorithm: Algorithm,
    name: str,
    when_down: str,
    options: dict[str, Any],
) -> CounterSpec:
    """`5 at once` is concurrency, unless another algorithm that holds places is named."""
    if len(limits) > 1:
        raise ConfigError(
            f"{spelling!r} counts how many at once beside something else; make two limiters, and nest them"
        )
    if not isinstance(limits[0], ConcurrencyLimit):
        said = f"{algorithm.spelling} ({algorithm.code}) counts how many at once"
        raise ConfigError(
            f"{said}, not how often; write '{limits[0].rpu} at once' instead of {spelling!r}"
        )
    if not uses_slots(algorithm):
        if algorithm.code != DEFAULT_ALGO:
            raise ConfigError(
                f"{algorithm.spelling} ({algorithm.code}) counts how often, not how many at once; remove algo"
            )
        algorithm = algorithm_from_spelling("C")
    hold = options.get("hold")
    if hold is not None and not isinstance(hold, str):
        raise ConfigError(f"hold is {hold!r}; write a duration such as 60s", path="hold")
    hold_us = limits[0].unit_us if hold is None else micros_from_spelling(hold)
    others = {option: value for option, value in options.items() if option != "hold"}
    for unasked in ("max_wait", "max_waiting"):
        if unasked in others:
            raise ConfigError(
                f"{unasked} is for rules; a limiter waits when asked: slot(key, wait=2)"
            )
    return meter_from_limit(
        name, checked_places(limits[0].rpu, hold_us), algorithm, others, when_down
    )
