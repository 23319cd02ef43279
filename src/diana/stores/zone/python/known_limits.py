"""What a process knows of the limits that count in a zone: their numbers there, their latest form, and the hashes of keys.

Another process may know other limits; a zone holds only what `entry_table` and `counter_states` write.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from diana.core.counter import CounterSpec
from diana.core.entry_log import Log
from diana.core.errors import ConfigError, KeyTypeError
from diana.stores.zone.misfit_errors import too_many_entries
from diana.stores.zone.python.entry_table import (
    MOST_NUMBERS,
    EntryTable,
)
from diana.stores.zone.python.log_entries import MOST_ENTRIES
from diana.stores.zone.python.zone_layout import (
    GENERATION,
    MOST_LIMITS,
)

MOST_DIGESTS = 10_000
"""Hashes of keys that are remembered: the same few clients ask again and again."""
MOST_METERS = 20_000


class KnownLimits:
    def __init__(self, table: EntryTable, secret: bytes) -> None:
        self._table = table
        self._secret = secret
        self.digests: dict[tuple[str, str], bytes] = {}
        """By a limit's id and a key."""
        self._numbers: dict[str, tuple[int, int]] = {}
        """By id: the number of its limit, and the generation of numbers it is of."""
        self._fit: set[CounterSpec] = set()
        self._ids: dict[int, str] = {}
        """By the number of a limit."""
        self.current: dict[str, CounterSpec] = {}
        """By id, the one that was last asked: a limit may have been edited."""

    def check_meter(self, meter: CounterSpec) -> None:
        """ConfigError if a state of this limit may not fit."""
        state, _ = meter.decide(None, meter.params, 1, 0)
        if isinstance(state, Log):
            if meter.params.limit > MOST_ENTRIES:
                raise too_many_entries(meter, MOST_ENTRIES)
        elif not isinstance(state, tuple) or len(state) > MOST_NUMBERS or not _are_whole(state):
            raise unfit(meter)

    def check_new(self, meter: CounterSpec) -> None:
        """A limit may come from code, at any time."""
        if meter not in self._fit:
            self.check_meter(meter)
            if len(self._fit) >= MOST_METERS:
                self._fit.clear()
            self._fit.add(meter)

    def number(self, meter: CounterSpec) -> int:
        """Under which the limit's slots are counted."""
        generation = self._table.control[GENERATION]
        known = self._numbers.get(meter.id)
        if known is None or known[1] != generation:
            digest = self._limit_digest(meter.id)
            number = self._table.number_of_limit(meter.id, digest)
            if len(self._numbers) >= MOST_METERS:
                self._numbers.clear()
                self._ids.clear()
            known = self._numbers[meter.id] = (number, self._table.control[GENERATION])
            self._ids[number] = meter.id
        self.remember(meter)
        return known[0]

    def remember(self, meter: CounterSpec) -> None:
        if len(self.current) >= MOST_METERS:
            self.current.clear()
        self.current[meter.id] = meter

    def limit_of(self, number: int) -> CounterSpec | None:
        """None: this process does not know it. The last number is shared by limits that have none of their own."""
        id = self._ids.get(number)
        if id is None or number == MOST_LIMITS - 1:
            return None
        if self._numbers.get(id) != (number, self._table.control[GENERATION]):
            return None
        meter = self.current.get(id)
        family = None if meter is None else meter.family
        return meter if family is None else family.longest

    def digest(self, meter: CounterSpec, key: str) -> bytes:
        if not isinstance(key, str):
            raise KeyTypeError(key)
        id = meter.id.encode("utf-8", "surrogatepass")
        hashed = blake2b(len(id).to_bytes(4, "little"), key=self._secret, digest_size=16)
        hashed.update(id)
        hashed.update(key.encode("utf-8", "surrogatepass"))
        digest = hashed.digest()
        if len(key) < 128:
            if len(self.digests) >= MOST_DIGESTS:
                self.digests.clear()
            self.digests[meter.id, key] = digest
        return digest

    def _limit_digest(self, id: str) -> bytes:
        spelled = id.encode("utf-8", "surrogatepass")
        return blake2b(spelled, key=self._secret, digest_size=16, person=b"limit").digest()

    def forget_numbers(self) -> None:
        """The zone was emptied."""
        self._numbers.clear()
        self._ids.clear()


def unfit(meter: CounterSpec) -> ConfigError:
    return ConfigError(
        f"{meter.algorithm.spelling} ({meter.algorithm.code}) cannot count in a zone: a state has to be at most {MOST_NUMBERS:,} "
        "whole numbers below 2**63, or a log; write local_store: memory://",
        path="algo",
    )


def _are_whole(state: tuple[Any, ...]) -> bool:
    return all(number.__class__ is int and -(2**63) <= number < 2**63 for number in state)
