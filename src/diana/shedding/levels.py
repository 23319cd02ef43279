"""Which level holds: reached at its `above`, left only clearly below it.

value
 90 ┤        ╭──╮                level 2 is reached at 90
 85 ┤───────╱────╲─────────      … and left at 85
 80 ┤    ╭─╯      ╰╮             level 1 is reached at 80
 75 ┤───╱──────────╲───────      … and left at 75
    └─0─┴─1─┴─2──┴─1─┴─0──▶ time
"""

from __future__ import annotations

from collections.abc import Sequence

from diana.core.shed import Level

POINTS = 5
SHARE = 0.05


def leave_at(level: Level) -> float:
    """5 points below; of large numbers, as a queue's length, 5 %; and never below half, or a small one could not be left."""
    return level.above - min(max(POINTS, SHARE * level.above), level.above / 2)


def level_after(levels: Sequence[Level], current: int, value: float) -> int:
    """The level that holds at this value, after `current`; 0 is none."""
    reached = sum(value >= level.above for level in levels)
    current = min(current, len(levels))
    while current > reached and value <= leave_at(levels[current - 1]):
        current -= 1
    return max(current, reached)
