"""Kernels and counters in C: see native/."""

from collections.abc import Callable, Sequence

from diana.core.charge import Charges
from diana.core.contracts import Clock, Numbers, Take
from diana.core.counter import CounterGroup, CounterSpec
from diana.core.decision import Decision

Body = bytearray | memoryview
"""Of a zone: memory that can be written."""

INTERFACE: int
SHARES: int
SMALLEST: int
BUCKET: int
WINDOW: int
SLIDING: int
LOG: int
NUMBERS: int

class Terms:
    def __init__(
        self,
        kind: int,
        id: str,
        most: int,
        params: Numbers,
        longest: Numbers | None,
        horizon_us: int,
        family: CounterGroup | None,
        longest_of: CounterSpec | None,
    ) -> None: ...
    @property
    def kind(self) -> int: ...

Swap = tuple[Terms, str, Numbers | None, Numbers | None, int, int]

class Counters:
    def __init__(
        self,
        max_keys: int,
        body: Body | None = None,
        secret: bytes = b"",
        epoch_offset_us: int = 0,
    ) -> None: ...
    def __len__(self) -> int: ...
    def bind(self, terms: Terms, clock: Clock | None) -> Take: ...
    def decider(
        self, otherwise: Callable[[Charges, int | None], list[Decision]]
    ) -> Callable[[Charges, int | None], list[Decision]]: ...
    def decide(
        self, charges: Charges, now: int | None = None, denied: bool = False
    ) -> list[Decision] | None: ...
    def peek(self, charges: Charges, now: int | None = None) -> list[Decision] | None: ...
    def refund(self, terms: Terms, key: str, cost: int, at: int, now: int | None) -> None: ...
    def reset(self, terms: Terms, key: str) -> None: ...
    def read(self, terms: Terms, key: str) -> Numbers | None: ...
    def swap(
        self, charges: Charges, swaps: list[Swap], now: int | None
    ) -> list[Decision] | None: ...
    def clear(self) -> None: ...
    def statistics(self) -> dict[str, int]: ...
    def owners(self) -> Sequence[tuple[bytes, int]]: ...
    def owner_of(self, terms: Terms) -> bytes: ...

def setup(
    decision: type[Decision],
    cost_error: type[Exception],
    key_error: type[Exception],
    terms_of: Callable[[CounterSpec], Terms],
    secret: bytes,
    epoch_offset_us: int,
) -> None: ...
def lay_out(body: Body) -> None: ...
def adopt(body: Body) -> None: ...
def siphash(secret: bytes, data: bytes) -> bytes: ...
