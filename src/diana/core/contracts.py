"""The seams, on one page. Whoever writes an algorithm or a store implements one of these; `diana.testing` checks it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from diana.core.entry_log import Log

if TYPE_CHECKING:
    from diana.core.charge import Charges
    from diana.core.counter import CounterSpec
    from diana.core.decision import Decision
    from diana.core.limit import Limit
    from diana.core.request import Request
    from diana.core.verdict import Verdict

Clock = Callable[[], int]
"""Whole microseconds since the epoch."""

Numbers = tuple[int, ...]

State = Numbers | Log
"""What is remembered of one key: a few whole numbers, or a Log, which may be long. None: never seen.

Either is a value: a store keeps it, writes it only if all pass, and never changes it. One that cannot keep a Log as it is writes down its
`entries()` and makes it anew with `log_of`.
"""


Decide = Callable[[Any, Any, int, int], tuple[State | None, tuple[bool, int, int, int, int]]]
"""`decide(state, params, cost, now)`: see Algorithm."""


class Params(Protocol):
    """A limit made ready for its algorithm: computed once, read on every request."""

    @property
    def limit(self) -> int:
        """The most that can pass in one instant."""


class Algorithm(Protocol):
    """May they? Pure: no clock, no I/O, whole numbers below 2**53 only."""

    code: str
    """As written in rules: `TB`."""
    spelling: str
    """The same in words: `token bucket`."""
    options: tuple[str, ...]
    """The option names that `params` takes."""
    identity: tuple[str, ...]
    """Those options that a state depends on, each also an attribute of its params: another value is another counter."""

    examples: tuple[Mapping[str, Any], ...]
    """Option sets that the laws are checked with."""

    @property
    def params(self) -> Callable[..., Any]:
        """`params(limit, **options)`: check the options (ConfigError), compute what can be computed, give a Params."""

    def decide(
        self, state: Any, params: Any, cost: int, now: int
    ) -> tuple[State | None, tuple[bool, int, int, int, int]]:
        """The next state and an Outcome, from a state that it gave before, or None. A cost of 0 always passes.

        A denial returns the very state it was given, unless that was stamped over a second ahead of `now`: then the same
        counts, stamped `now`, or a clock that was set back would block the key until it catches up.
        """

    def refund(self, state: Any, params: Any, cost: int, at: int, now: int) -> State:
        """Take back a charge made at `at` (see ChargingAhead), as far as it still counts."""

    def promise(self, params: Any, interval_us: int) -> int:
        """The most that is ever admitted in a half-open interval of this length."""


class OtherNames(Protocol):
    """An algorithm may have more names, by which others know it."""

    also_written: tuple[str, ...]
    """In words and small letters, as `spelling`."""


class InLua(Protocol):
    """An algorithm may also come in Lua, for stores that count there. It must decide exactly as in Python."""

    lua: str
    """`function(state, params, cost, now)`, which gives the next state (or false if it is unchanged) and an Outcome's five numbers.

    `params` are the numbers of its Params' `numbers`. No `redis.call` in it: the store reads and writes.
    """


class InC(Protocol):
    """An algorithm of Diana's own is also there in C. Not inherited: a subclass that decides otherwise is asked in Python."""

    kernel: str
    """The kernel in `native/` that decides exactly as it does: `bucket`, `window`, `sliding window`, `sliding log`."""


class LogInLua(InLua, Protocol):
    """The same for an algorithm whose state is a Log.

    Lua is given a draft of the log, which is never nil, and changes it; the store writes down the changes only if all pass. In this order:
    `log.clamp(moment)` if the clock was set back, `log.drop(moment)` what has expired, ask for `log.amount`, `log.newest` (nil: there is
    none) and `log.nth(n)`, `log.append(moment, count)`. As the next state it gives the log, or false if nothing is to be written.
    """

    keeps_log: bool
    """True."""
    lua_refund: str
    """`function(log, params, cost, at, now)`, which may also `log.strike(moment, count)`, or `log.release(moment, count)` where entries
    seldom expire. Without it a refund reads the log whole."""


class Shared(Protocol):
    """An algorithm may say what a node gets of a limit that is divided; without it, the count is divided."""

    def share(
        self, limit: Limit, options: Mapping[str, Any], nodes: int, weight: int = 1
    ) -> tuple[Limit, dict[str, Any]]:
        """The limit and options of one of n nodes, or of one that weighs so much of n. States must be convertible between them, as when
        a limit is edited."""


class Delaying(Protocol):
    """An algorithm whose admitted requests may have to wait says so: what it released in a row cannot be given back."""

    delays: bool
    """True."""


class ChargingAhead(Protocol):
    """An algorithm that may count a charge at another moment than `now` (its state is ahead, or it names a place) says at which."""

    def moment_of(self, params: Any, outcome: tuple[bool, int, int, int, int], now: int) -> int:
        """The `at` of a refund, for a charge that was admitted at `now` with this outcome."""


class ConcurrencyAlgorithm(ChargingAhead, Protocol):
    """An algorithm by which each admitted charge acquires a slot, and releases it when done: so many at once.

    Its limit is a `ConcurrencyLimit`: `rpu` slots, and `unit_us` is the time after which one expires that is neither renewed nor released.
    A denial's `retry_after_us` is UNKNOWN, or what an option says; it is never cached, since a slot may be released at any moment. A
    `refund` at a slot's own moment releases it, once.
    """

    uses_slots: bool
    """True."""

    def moment_of(self, params: Any, outcome: tuple[bool, int, int, int, int], now: int) -> int:
        """Which place a charge took that was admitted at `now`: a moment that no other place of its key has."""

    def renew(self, state: Any, params: Any, cost: int, at: int, now: int) -> tuple[State, int]:
        """Hold the place of `at` from now on. The next state and the place's moment from now on; 0 if it has run off, and all are taken."""


class ConcurrencyInLua(LogInLua, ConcurrencyAlgorithm, Protocol):
    """Renewing in Lua; without it, a renewal reads the state whole."""

    lua_renew: str
    """`function(log, params, cost, at, now)`, which gives the log, when it may be forgotten, and the place's moment, or 0."""


class EditAware(Protocol):
    """An algorithm whose states depend on more of the limit than an edit may change at once says how a new limit counts at first."""

    def options_after_edit(
        self, options: Mapping[str, Any], params: Any, former: Any, now: int
    ) -> Mapping[str, Any]:
        """Options for `params` of a limit that replaces another, with the params `former`, on the same counters."""


class Tiered(Protocol):
    """An algorithm may say how the tiers of a rule share a counter; without it, each has the params of its limit alone.

    Needed if a state depends on the limit it was written under: in any interval no more may pass than the highest tier promises.
    """

    def params_of_tiers(self, tiers: Sequence[tuple[Limit, Mapping[str, Any]]]) -> list[Any]:
        """For each limit with its options, in their order."""


class Take(Protocol):
    """One limit bound to one store: charge a key."""

    def __call__(self, key: str, cost: int = 1) -> Decision: ...


GiveBack = Callable[[str, int, int], None]
"""One limit bound to one store: give back what a key was charged at a moment, `give_back(key, cost, at)`."""


class Store(Protocol):
    """Who remembers? Thread-safe; several charges are all or nothing. `now` replaces the store's own clock."""

    shared: bool
    """Others reach the same counters, so a limit needs a name of its own."""

    def bind(self, meter: CounterSpec, clock: Clock | None = None) -> Take:
        """The fast lane for one limit: whatever can be computed before the first request is computed here."""

    def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        """Charge all, or none if one is denied. A passing one beside a denied one shows what it has without the charge.

        No two charges of one call are to the same counter: limits that would be are refused when they are made.
        """

    def peek(self, charges: Charges, now: int | None = None) -> list[Decision]:
        """What `decide` would answer; nothing is written."""

    def refund(self, charges: Charges, at: int, now: int | None = None) -> None:
        """Take back charges that were made at `at`, as far as they still count.

        A store that gives degraded decisions has a `refund_here` beside it, for those.
        """

    def reset(self, meter: CounterSpec, key: str) -> None:
        """Forget the key."""

    def close(self) -> None:
        """Let go of connections and threads."""


class RenewingStore(Protocol):
    """What a store may have beside a Store's methods, for places.

    Without `renew` a place is renewed by giving it back and taking one; without `bind_refund` it is given back by `refund`.
    """

    def bind_refund(self, meter: CounterSpec, clock: Clock | None = None) -> GiveBack:
        """The fast lane for giving back places of one limit."""

    def renew(self, charge: tuple[CounterSpec, str, int], at: int, now: int | None = None) -> int:
        """Hold the place that was taken at `at` from now on; gives its moment from now on, or 0 if it has run off, and all are taken."""


class StoreByUrl(Protocol):
    """What the class of a store may have beside a Store's methods: an entry point in `diana.stores`, named like the scheme."""

    settings: tuple[str, ...]
    """Those of the rules file that `from_url` takes by name: `namespace`, `budget_us`, `nodes`, `weight`."""

    def from_url(self, url: str, **settings: Any) -> Store:
        """Open it; ConfigError says what to write instead."""

    def check_url(self, url: str) -> Any:
        """ConfigError if the URL cannot be meant; nothing is opened."""


class FleetStore(Protocol):
    """What a store that a fleet shares may have beside a Store's methods."""

    namespace: str
    """The prefix of all its keys."""
    asynchronous: AsyncStore
    """Its side for coroutines, if its methods would block."""
    overrides: Any
    """The overrides that stand in it, as this node knows them."""
    shares: Any
    """What this node gets of a limit that is divided, as its heartbeat tells: a `diana.core.node_share.Shares`."""
    arrivals: Any
    """How often keys are asked for in the fleet, as its heartbeat tells: a `diana.stores.arrival_rates.Arrivals`."""
    leased: Store
    """Its side for permits that are leased; without one, they are asked for one by one."""

    def check_reachable(self) -> None:
        """For `require_store`: StoreError, within a few seconds, unless the store can be reached and accepts the login."""

    def counts(self) -> Mapping[str, int]:
        """How often what happened, by name: for telemetry."""

    def refund_here(self, charges: Charges, at: int, now: int | None = None) -> None:
        """Take back degraded charges, which the store knows nothing of."""

    def release(
        self,
        places: Sequence[tuple[tuple[CounterSpec, str, int], int, bool]],
        now: int | None = None,
    ) -> list[Any]:
        """Give places back, all side by side: (charge, moment, degraded) of each. Gives those that could not be, for another try."""


class AsyncFleetStore(Protocol):
    """What the side for coroutines of such a store may have beside an AsyncStore's methods."""

    async def refund_here(self, charges: Charges, at: int, now: int | None = None) -> None:
        """Take back degraded charges, which the store knows nothing of."""


T = TypeVar("T")

StateSwap = tuple[str, Numbers | None, Numbers]
"""A key, its state before, and its state afterwards."""


class Zone(Store, Protocol):
    """A store that all processes of one machine count in: one node of a fleet."""

    node: str
    """What it is called among the nodes."""

    def check_meter(self, meter: CounterSpec) -> None:
        """ConfigError if what this limit has to remember does not fit. Asked when rules are loaded."""

    def now_us(self) -> int:
        """Its time: the same for all processes, and never set while one of them uses it."""

    def read(self, meter: CounterSpec, keys: Sequence[str]) -> list[Numbers | None]:
        """States as they stand there."""

    def swap(self, meter: CounterSpec, swaps: Sequence[StateSwap], lasts_us: int) -> bool:
        """Write others, if all of them still are what they were; they may be forgotten after that time."""

    def change(
        self,
        meter: CounterSpec,
        key: str,
        act: Callable[[Numbers | None], tuple[Numbers | None, T]],
    ) -> T:
        """`act` gives another state, or the same; and may be called again, if another process was faster."""


class Client(Protocol):
    """The application's own client of Redis or Valkey, where a store is wanted."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...


class AsyncTake(Protocol):
    def __call__(self, key: str, cost: int = 1) -> Awaitable[Decision]: ...


class AsyncStore(Protocol):
    """The same for coroutines. A store that would block has one as its attribute `asynchronous`; the others are called as they are."""

    def bind(self, meter: CounterSpec, clock: Clock | None = None) -> AsyncTake: ...

    async def decide(self, charges: Charges, now: int | None = None) -> list[Decision]: ...

    async def peek(self, charges: Charges, now: int | None = None) -> list[Decision]: ...

    async def refund(self, charges: Charges, at: int, now: int | None = None) -> None: ...

    async def reset(self, meter: CounterSpec, key: str) -> None: ...

    async def close(self) -> None: ...


class Revision(NamedTuple):
    """What a source holds at some moment."""

    text: bytes
    version: str
    """Another one for every change: who writes says which one it has seen."""


class Source(Protocol):
    """Where do rules come from? Blocking: it has a thread of its own, and sync and async users get the same thing.

    By URL: an entry point in `diana.sources` named like the scheme, with `from_url(url)` and, if it can, `check_url(url)`.
    """

    def load(self) -> Revision:
        """What is there now. SourceError if nobody answers within a few seconds, or if there is nothing."""

    def watch(self, known: Revision) -> Iterator[Revision]:
        """Every later edition, each within 2 s of being published; blocks between them. SourceError when the connection is lost."""

    def close(self) -> None:
        """Called from another thread: end a watch."""


class WritableSource(Protocol):
    """A source that can be written to, too: for `diana push` and `rollback`.

    It may have a `place`: what to call it before operators, without secrets, such as `redis://host:6379, key diana:rules`.
    """

    def publish(self, text: bytes, seen: Revision | None) -> Revision:
        """Replace `seen` (None: nothing was there) and keep it as the previous edition. SourceError if something else is there by now."""

    def previous(self) -> Revision:
        """What `publish` replaced last. SourceError if there is none."""


class Observer(Protocol):
    """Told of every verdict, after it was made; what it raises is logged and forgotten.

    One that has a `watch(counts)` is given, once, a function that tells what the store has counted so far: a mapping of names to numbers.
    One that has a `watch_factors(states)` is given, once, a function that tells the factors of load shedding, each with its `factor`,
    `smoothed` and `level`.
    """

    def __call__(self, request: Request, verdict: Verdict) -> None: ...
