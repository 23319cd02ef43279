"""Header lines of several limits on one route: `RateLimit` and its policy are lists, `X-RateLimit-*` are the tightest limit's numbers."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from math import inf
from typing import Any

from diana.responses.denial_response import Fields
from diana.web.route_limit import Checked

TOLD = "diana.fields"
"""In a scope and an environ: the header lines of each limit that has allowed this request on its route."""
NUMBER = b"x-ratelimit-"
REMAINING = b"x-ratelimit-remaining"
RETRY_AFTER = b"retry-after"


def remember(checked: Checked, context: MutableMapping[str, Any]) -> bool:
    """Keep the header lines for the response. True for the outermost limit of a route: it adds the lines of all of them.

    A denial refunds the limits before it, so their lines are no longer true.
    """
    if checked.verdict is None:
        return False
    is_outermost = TOLD not in context
    if checked.denial is None:
        context.setdefault(TOLD, []).append(checked.fields)
    else:
        context[TOLD] = []
    return is_outermost


def remembered(context: MutableMapping[str, Any]) -> Fields:
    """The header lines of all limits of the route, once."""
    return combined(context.pop(TOLD, ()))


def combined(several: Sequence[Fields]) -> Fields:
    if len(several) < 2:
        return several[0] if several else []
    lines = [line for fields in several for line in fields if not line[0].startswith(NUMBER)]
    tightest = min(several, key=_room)
    return [*lines, *(line for line in tightest if line[0].startswith(NUMBER))]


def _room(fields: Fields) -> tuple[float, float]:
    """What remains, then how soon to retry: less is tighter. A limit that announces no numbers is never the tightest."""
    numbers = dict(fields)
    remaining = numbers.get(REMAINING)
    if remaining is None:
        return inf, 0
    return int(remaining), -int(numbers.get(RETRY_AFTER, 0))
