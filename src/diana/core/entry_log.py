"""A log: moments, and how much was admitted at each, whose cost per decision does not grow with its length.

The state of an algorithm that has to know every moment. As a plain tuple it costs its whole length on every decision, because a state is
a value: the next one is a copy. A Log is a value too, but one that shares its entries with the one before:

    moments   | 3 | 5 | 5.2 | 7 |          each entry also says how much was admitted up to and with it, so how much lies
    through   | 1 | 3 | 4   | 9 |  newest  between two entries is one subtraction, and the n-th is found by halving
                first ─▶     ◀─ end

To append, the newest entry is written behind the others, where no older Log looks; to drop what has expired, `first` moves on. Should
another Log have been continued there already, the entries are copied. The newest is kept apart, so that a Log that is made and
thrown away (a denial by another limit) leaves nothing behind, and so that what happens at one moment is one entry.

A store that cannot hold a Log as it is reads and writes its `entries()`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

FAR = 2**62
"""Sums begin anew before they leave the array's 64 bits."""
SCRAP = 64
"""Dropped entries are given back when there are more of them than of others, and at least so many."""

_new = tuple.__new__


class UnknownEntry(Exception):
    """Asked of a log of which only a part is known: see PartialLog."""


class Log(NamedTuple):
    """Immutable: every change gives another one. Make it with `NO_LOG` or `log_of`."""

    moments: array[int]
    through: array[int]
    first: int
    end: int
    """Entries from `first` to before `end`, and then the newest, are those that count."""
    before: int
    """How much was admitted before `first`."""
    newest: int
    """The latest moment; NO_MOMENT if there is none."""
    total: int

    @property
    def amount(self) -> int:
        """How much was admitted at all moments together."""
        return self.total - self.before

    def nth(self, number: int) -> int:
        """The moment of the n-th that was admitted, the oldest being the first."""
        _, through, first, end, before, newest, total = self
        if not 0 < number <= total - before:
            raise IndexError(number)
        place = bisect_left(through, before + number, first, end)
        return newest if place == end else self.moments[place]

    def after(self, moment: int) -> Log:
        """Without what is not later than this: it has expired."""
        moments, through, first, end, _, newest, total = self
        if newest <= moment:
            return NO_LOG
        if first == end or moments[first] > moment:
            return self
        place = bisect_right(moments, moment, first, end)
        return _new(
            self.__class__, (moments, through, place, end, through[place - 1], newest, total)
        )

    def clamped(self, moment: int) -> Log:
        """What is later than this, as of this moment: the clock was set back."""
        moments, through, first, end, before, newest, total = self
        if newest <= moment:
            return self
        end = bisect_left(moments, moment, first, end)
        return _new(Log, (moments, through, first, end, before, moment, total))

    def append(self, moment: int, count: int) -> Log:
        """With so many more, at a moment that is not before the newest."""
        moments, through, first, end, before, newest, total = self
        if moment <= newest:
            if moment < newest:
                raise ValueError(f"{moment} is before {newest}")
            return _new(Log, (moments, through, first, end, before, newest, total + count))
        if count < 1:
            raise ValueError(f"{count} cannot be appended")
        if total == before:
            return _new(Log, (_NOTHING, _NOTHING, 0, 0, 0, moment, count))
        if first > SCRAP + end // 2 or before > FAR:
            return self._copied().append(moment, count)
        if end == len(moments) == len(through) and end:
            moments.append(newest)
            through.append(total)
        elif not self._is_continued():
            copied = self._copied()
            moments, through, first, end, before, newest, total = copied
            moments.append(newest)
            through.append(total)
        return _new(Log, (moments, through, first, end + 1, before, moment, total + count))

    def _is_continued(self) -> bool:
        """Whether the newest entry stands behind the others already: another Log was made from this one before."""
        end = self.end
        if not end < len(self.moments) == len(self.through):
            return False
        return self.moments[end] == self.newest and self.through[end] == self.total

    def _copied(self) -> Log:
        """With entries of its own."""
        moments, through, first, end, before, newest, total = self
        moments, through = moments[first:end], through[first:end]
        if before > FAR:
            through = array("q", [up_to - before for up_to in through])
            before, total = 0, total - before
        return _new(Log, (moments, through, 0, end - first, before, newest, total))

    def strike(self, moment: int, count: int) -> Log:
        """With so many fewer of those of this very moment, as far as there are any. Costs what lies after it."""
        moments, through, first, end, before, newest, total = self
        if moment == newest:
            last = through[end - 1] if end > first else before
            if count < total - last:
                return _new(Log, (moments, through, first, end, before, newest, total - count))
            if end == first:
                return NO_LOG
            return _new(Log, (moments, through, first, end - 1, before, moments[end - 1], last))
        place = bisect_left(moments, moment, first, end)
        if place == end or moments[place] != moment or not count:
            return self
        held = through[place] - (through[place - 1] if place > first else before)
        struck = min(count, held)
        gone = struck == held
        if gone and place == first:
            # The oldest: no sum behind it changes.
            return _new(Log, (moments, through, first + 1, end, through[first], newest, total))
        kept = through[first:place]
        kept.extend([up_to - struck for up_to in through[place + gone : end]])
        left = moments[first : place + (not gone)]
        left.extend(moments[place + 1 : end])
        return _new(Log, (left, kept, 0, len(left), before, newest, total - struck))

    def entries(self) -> Iterator[tuple[int, int]]:
        """(moment, how much) of each, oldest first."""
        moments, through, first, end, before, newest, total = self
        for place in range(first, end):
            yield moments[place], through[place] - before
            before = through[place]
        if total > before:
            yield newest, total - before


NO_MOMENT = -(2**62)
_NOTHING: array[int] = array("q")
NO_LOG = Log(_NOTHING, _NOTHING, 0, 0, 0, NO_MOMENT, 0)


class PartialLog(Log):
    """The oldest entries and the newest moment of a log; how much lies between is known, but not when.

    It answers as the whole log would, or raises UnknownEntry. Of a denial that is all one needs to know to say it again.
    """

    __slots__ = ()

    def nth(self, number: int) -> int:
        if number > self.through[self.end - 1] - self.before:
            raise UnknownEntry
        return super().nth(number)

    def after(self, moment: int) -> Log:
        if self.newest > moment >= self.moments[self.end - 1]:
            raise UnknownEntry
        return super().after(moment)

    def clamped(self, moment: int) -> Log:
        if self.newest > moment:
            raise UnknownEntry
        return self

    def append(self, *_: int) -> Log:
        raise UnknownEntry

    def strike(self, *_: int) -> Log:
        raise UnknownEntry


def log_of(entries: Iterable[tuple[int, int]]) -> Log:
    """From (moment, how much), oldest first."""
    log = NO_LOG
    for moment, count in entries:
        log = log.append(moment, count)
    return log


def partial_log(known: Iterable[tuple[int, int]], newest: int, rest: int) -> Log:
    """The oldest entries, at least one, and so many more, of which the last is at `newest`."""
    return _new(PartialLog, log_of([*known, (newest, rest)]))
