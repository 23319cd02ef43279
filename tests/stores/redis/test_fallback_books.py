"""What is given back of decisions made without the store: never what the store may not have been charged. No server: the fallback alone."""

from __future__ import annotations

from typing import Any

from diana.core.charge import Charge
from diana.core.node_share import Share, Shares
from diana.stores.redis.local_fallback import Fallback
from diana.stores.redis.protocol.commands import Command
from diana.stores.redis.protocol.server_clock import ServerClock
from tests.stores.redis.callers import window

TEN = window(10)
CHARGE = Charge(TEN, "k", 1)
KEY = b"key"
NOW = 1_700_000_000_000_000


def admitted(fallback: Fallback, at: int, note: bool = True) -> int:
    """The moment under which it is given back."""
    (decision,) = fallback.decide([CHARGE], [KEY], at, note)
    assert decision
    return decision.at


def settled(fallback: Fallback, *, replies: bool) -> int:
    """How much was sent to be charged; the reply comes, or is lost."""
    step = fallback.settle(ServerClock(), lambda _: True, lambda _: 0, 1.0)
    assert step is not None
    (exchange,), amount = step
    command: Command = next(exchange)
    if replies:
        tag: Any = command.words[6]
        try:
            exchange.send([NOW, tag, [1, 1, 5, 0, 0, 0]])
        except StopIteration:
            return amount
        raise AssertionError("it has no more to say")
    exchange.close()
    return amount


def fallback_alone() -> Fallback:
    return Fallback(Shares(Share()))


def test_what_was_charged_to_the_store_is_the_stores_to_give_back_once() -> None:
    fallback = fallback_alone()
    at = admitted(fallback, NOW)
    assert settled(fallback, replies=True) == 1
    assert fallback.refund(CHARGE, KEY, at, NOW) == 1
    assert fallback.refund(CHARGE, KEY, at, NOW) == 0


def test_what_was_not_charged_yet_is_given_back_here() -> None:
    fallback = fallback_alone()
    first, _ = admitted(fallback, NOW), admitted(fallback, NOW + 1)
    assert fallback.refund(CHARGE, KEY, first, NOW + 2) == 0
    assert settled(fallback, replies=True) == 1


def test_a_charge_of_unknown_outcome_is_given_back_here_alone() -> None:
    fallback = fallback_alone()
    admitted(fallback, NOW)
    assert settled(fallback, replies=True) == 1
    unknown = admitted(fallback, NOW + 1, note=False)
    (before,) = fallback.peek([(TEN, "k", 0)], NOW + 2)
    assert fallback.refund(CHARGE, KEY, unknown, NOW + 2) == 0
    (after,) = fallback.peek([(TEN, "k", 0)], NOW + 2)
    assert after.remaining == before.remaining + 1


def test_a_charge_of_unknown_outcome_takes_nothing_from_what_others_owe() -> None:
    fallback = fallback_alone()
    unknown = admitted(fallback, NOW, note=False)
    admitted(fallback, NOW + 1)
    assert fallback.refund(CHARGE, KEY, unknown, NOW + 2) == 0
    assert settled(fallback, replies=True) == 1


def test_two_of_unknown_outcome_at_one_moment_are_two() -> None:
    fallback = fallback_alone()
    at = admitted(fallback, NOW, note=False)
    assert admitted(fallback, NOW, note=False) == at
    admitted(fallback, NOW + 1)
    fallback.refund(CHARGE, KEY, at, NOW + 2)
    fallback.refund(CHARGE, KEY, at, NOW + 2)
    assert settled(fallback, replies=True) == 1


def test_what_may_not_have_been_settled_is_not_given_back_there() -> None:
    fallback = fallback_alone()
    at = admitted(fallback, NOW)
    assert settled(fallback, replies=False) == 1
    assert fallback.refund(CHARGE, KEY, at, NOW) == 0
