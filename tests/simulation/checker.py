"""What must hold in what was recorded: never more than the algorithm promises, in any interval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

SECOND_US = 1_000_000


class Excess(NamedTuple):
    """How many more passed than promised, and by when."""

    above: float
    at_us: int


class Apart(NamedTuple):
    """Meanwhile some nodes counted alone, beside others that reached the store: so much more may leak."""

    begin_us: int
    end_us: int
    per_second: float


def excess_of_bucket(
    moments: Sequence[int], burst: float, per_second: float, apart: Sequence[Apart] = ()
) -> Excess:
    """In every interval t at most burst + rate·t: of all beginnings, the one that allows least is remembered."""
    worst = Excess(-burst, 0)
    least = 0.0
    for passed, moment in enumerate(moments):
        leaked = moment * per_second / SECOND_US
        for begin_us, end_us, more in apart:
            leaked += max(0, min(moment, end_us) - begin_us) * more / SECOND_US
        least = min(least, passed - leaked) if passed else -leaked
        above = passed + 1 - leaked - least - burst
        if above > worst.above:
            worst = Excess(above, moment)
    return worst


def excess_of_sliding_window(moments: Sequence[int], limit: int, unit_us: int) -> Excess:
    """In every half-open interval of a unit."""
    worst = Excess(-limit, 0)
    first = 0
    for last, moment in enumerate(moments):
        while moments[first] <= moment - unit_us:
            first += 1
        above = last - first + 1 - limit
        if above > worst.above:
            worst = Excess(above, moment)
    return worst


def excess_of_window(moments: Sequence[int], limit: int, unit_us: int) -> Excess:
    """In every window; the world begins at a whole unit of the store's clock."""
    counts = Counter(moment // unit_us for moment in moments)
    window, most = max(counts.items(), key=lambda one: one[1], default=(0, 0))
    return Excess(most - limit, window * unit_us)


def excess(
    code: str,
    moments: Sequence[int],
    limit: int,
    burst: int,
    unit_us: int = SECOND_US,
    apart: Sequence[Apart] = (),
) -> Excess:
    """Above what a limit of these numbers promises."""
    if code == "TB":
        return excess_of_bucket(moments, burst, limit * SECOND_US / unit_us, apart)
    of_window = excess_of_window if code == "W" else excess_of_sliding_window
    return of_window(moments, limit, unit_us)
