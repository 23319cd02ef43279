"""`shared://NAME`, or `shared://NAME?size=64m`: counters of all processes of a machine that open it by this name.

Two kinds of a zone do the same: `native`, in C, where Diana was built with a compiler, and `python`. The file says which it is, so that
processes of both kinds never meet in one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib import import_module
from time import monotonic_ns
from typing import Any, NamedTuple

from diana.core.charge import Charges
from diana.core.contracts import Clock, Numbers, StateSwap, Take
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.errors import ConfigError, shown
from diana.stores.c_kernels import description
from diana.stores.zone.zone_file import ZoneFile, checked_zone_name, open_zone_file
from diana.stores.zone.zone_size import size_from_spelling

_URL = re.compile(r"shared://([^/?#]*)/?(?:\?size=([^&]*))?", re.IGNORECASE)


class ZoneAddress(NamedTuple):
    name: str
    size: int | None
    """None: as large as it is."""


class SharedStore:
    shared = True

    def __init__(self, name: str, size: int | None = None, *, kind: str | None = None) -> None:
        """`kind`: not the one that this process would choose."""
        made = zone_kind(kind)
        self.file: ZoneFile = open_zone_file(
            name, made.kind, size, made.lay_out, getattr(made, "adopt", None)
        )
        self.zone_name = name
        self.zone = zone = made(self.file)
        self.node = self.file.header.node.hex()
        """What this machine's zone is called among the nodes of a fleet."""
        # The shell is not in the way: a decision calls the zone itself.
        self.bind = zone.bind  # type: ignore[method-assign]
        self.decide = zone.decide  # type: ignore[method-assign]
        self.change = zone.change

    @classmethod
    def from_url(cls, url: str) -> SharedStore:
        return cls(*cls.check_url(url))

    @staticmethod
    def check_url(url: str) -> ZoneAddress:
        spelled = _URL.fullmatch(url)
        if spelled is None:
            raise ConfigError(
                f"{shown(url)} is no zone; write shared://NAME or shared://NAME?size=64m"
            )
        size = None if spelled[2] is None else size_from_spelling(spelled[2])
        return ZoneAddress(checked_zone_name(spelled[1]), size)

    def check_meter(self, meter: CounterSpec) -> None:
        """ConfigError if what this limit counts does not fit into a zone."""
        self.zone.check_meter(meter)

    def bind(self, meter: CounterSpec, clock: Clock | None = None) -> Take:
        return self.zone.bind(meter, clock)  # type: ignore[no-any-return]

    def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        return self.zone.decide(charges, now)  # type: ignore[no-any-return]

    def peek(self, charges: Charges, now: int | None = None) -> list[Decision]:
        return self.zone.peek(charges, now)  # type: ignore[no-any-return]

    def refund(self, charges: Charges, at: int, now: int | None = None) -> None:
        self.zone.refund(charges, at, now)

    def renew(self, charge: tuple[CounterSpec, str, int], at: int, now: int | None = None) -> int:
        return self.zone.renew(charge, at, now)  # type: ignore[no-any-return]

    def reset(self, meter: CounterSpec, key: str) -> None:
        self.zone.reset(meter, key)

    def now_us(self) -> int:
        return monotonic_ns() // 1_000 + self.file.header.epoch_offset_us

    def read(self, meter: CounterSpec, keys: Sequence[str]) -> list[Numbers | None]:
        return self.zone.read(meter, keys)  # type: ignore[no-any-return]

    def swap(self, meter: CounterSpec, swaps: Sequence[StateSwap], lasts_us: int) -> bool:
        return self.zone.swap(meter, swaps, self.now_us(), lasts_us)  # type: ignore[no-any-return]

    def clear(self) -> None:
        """Forget every key, for all processes."""
        self.zone.clear()

    def close(self) -> None:
        """The zone stays, for other processes and for the next start."""
        self.zone.close()

    def counts(self) -> dict[str, int]:
        """Slots, those in use, keys, and how many were evicted."""
        return self.zone.counts()  # type: ignore[no-any-return]

    def limits(self) -> list[tuple[str, int]]:
        """Of each limit its id and what it uses."""
        return self.zone.limits()  # type: ignore[no-any-return]


def zone_kind(kind: str | None = None) -> Any:
    """Native where it can be, unless DIANA_NATIVE=0 says otherwise."""
    if kind == "native" or (kind is None and os.environ.get("DIANA_NATIVE") != "0"):
        try:
            return import_module("diana.stores.zone.c_zone").NativeZone
        except ImportError:
            if kind is not None:
                raise ConfigError(
                    f"this zone is of the native kind, and this process is {description()}"
                ) from None
    return import_module("diana.stores.zone.python.python_zone").PythonZone
