"""Limits, keys and answers as they travel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from diana.core.charge import ONE, Charges, checked_cost
from diana.core.contracts import State
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.errors import KeyTypeError
from diana.stores.memory import LONGEST_KEY, bounded_key
from diana.stores.redis.protocol.scripts import state_from_wire, wire_limit

MOST_PLANS = 100_000

_new = tuple.__new__


class EncodedCounter(NamedTuple):
    """What of a limit goes over the wire: the same for all its keys."""

    id: bytes
    prefix: bytes
    limit: bytes | None
    """None: its algorithm has no kernel in Lua."""
    longest: CounterSpec | None
    """Of the meter's family, when this was computed."""

    def is_of(self, meter: CounterSpec) -> bool:
        """Whether it still holds: a family may have a slower limit by now."""
        family = meter.family
        return family is None or family.longest is self.longest


class CounterEncoder:
    """Computed once per limit; the publisher is told of a new one."""

    def __init__(self, publish: Callable[[bytes, CounterSpec], None]) -> None:
        self._publish = publish
        self._plans: dict[CounterSpec, EncodedCounter] = {}
        self._known: dict[bytes, tuple[bytes | None, Any]] = {}
        """What was published: the limit, and what its rule says beside it."""

    def forget(self) -> None:
        """All; those in use are computed anew, and told of."""
        self._plans, self._known = {}, {}

    def of(self, meter: CounterSpec) -> EncodedCounter:
        plan = self._plans.get(meter)
        if plan is None or not plan.is_of(meter):
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
                self._known.clear()
            id = wire_text(meter.id)
            longest = None if meter.family is None else meter.family.longest
            plan = self._plans[meter] = EncodedCounter(id, id + b"|", wire_limit(meter), longest)
            # Of a rule's tiers and overrides, others are told of one: who has no tier of his own there is limited by it.
            family = meter.family
            first = meter if family is None else family.zero or family.first or meter
            limit = plan.limit if first is meter else wire_limit(first)
            if self._known.get(id) != (limit, first.facts):
                self._known[id] = limit, first.facts
                self._publish(id, first)
        return plan

    def keys(self, charges: Charges) -> list[bytes]:
        """One counter each. A long key as its digest, behind another sign."""
        keys = []
        for meter, key, cost in charges:
            if cost is not ONE:
                checked_cost(cost)
            if not isinstance(key, str):
                raise KeyTypeError(key)
            plan = self._plans.get(meter) or self.of(meter)
            if len(key) <= LONGEST_KEY:
                keys.append(plan.prefix + wire_text(key))
            else:
                keys.append(plan.id + b"#" + bytes(bounded_key(key)).hex().encode())  # type: ignore[arg-type]
        return keys

    def prepared(self, charges: Charges) -> tuple[list[bytes], list[Any] | None]:
        """Keys, and what `acquire` takes for them; None if an algorithm is not known there."""
        plans = self._plans
        keys: list[bytes] = []
        argv: list[Any] = [len(charges)] if len(charges) > 1 else []
        for meter, key, cost in charges:
            plan = plans.get(meter)
            if plan is not None and meter.family is not None and not plan.is_of(meter):
                break
            if plan is None or cost is not ONE or key.__class__ is not str:
                break
            if plan.limit is None or len(key) > LONGEST_KEY:
                break
            keys.append(plan.prefix + wire_text(key))
            argv.append(plan.limit)
        else:
            return keys, argv
        keys = self.keys(charges)
        return keys, self.argv("take", charges) if self.all_in_lua(charges) else None

    def argv(self, word: str, charges: Charges) -> list[Any]:
        argv: list[Any] = [word, len(charges)]
        for meter, _, cost in charges:
            argv += (self.of(meter).limit, cost)
        return argv

    def all_in_lua(self, charges: Charges) -> bool:
        return all(self.of(meter).limit is not None for meter, _, _ in charges)


def wire_text(text: str) -> bytes:
    """No braces: in a cluster they would choose the slot, and so a client its server."""
    if "{" in text or "}" in text or "%" in text:
        text = text.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
    return text.encode("utf-8", "surrogatepass")


def decisions_from_wire(at: int, said: list[Any], charges: Charges) -> list[Decision]:
    decisions = []
    place = 1
    for meter, key, cost in charges:
        passed, remaining, retry_us, reset_us, delay_us = said[place : place + 5]
        outcome = (passed == 1, remaining, retry_us, reset_us, delay_us)
        decisions.append(_new(Decision, (outcome, meter.params.limit, key, cost, at, False)))
        place += 5
    return decisions


def states_from_wire(said: list[Any], keys: list[bytes]) -> dict[bytes, State | None]:
    """Of the counters, as far as they were told: of a denial, and of a look."""
    told = said[1 + 5 * len(keys) :]
    if not told:
        return {}
    return {
        key: None if text == b"-" else state_from_wire(text)
        for key, text in zip(keys, told, strict=True)
        if text
    }
