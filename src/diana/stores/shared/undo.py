"""Changes that are whole or not at all, whenever the process dies.

Before a line is changed, what stands in it is copied to the undo lines, and then counted. When all changes are made, the count is set
back to 0. Who takes the zone's lock and finds another count puts the lines back: the last one to have it was killed, or interrupted by
an exception, in the middle. Putting back may be interrupted too, and is simply done again.

The count is one aligned number, written by one instruction; and no other process reads before it has the lock.
"""

from __future__ import annotations

from diana.stores.shared.layout import LINE, UNDO_LINES, Layout


class Undo:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._noted: set[int] = set()

    @property
    def lines(self) -> int:
        """How many are being changed."""
        return len(self._noted)

    def note(self, place: int) -> None:
        """The line of this place is about to be changed."""
        line = place & -LINE
        noted = self._noted
        if line in noted:
            return
        layout, number = self._layout, len(noted)
        if number == UNDO_LINES:
            raise RuntimeError("too much is changed at once")
        copy = layout.undo_lines + number * LINE
        layout.mapping[copy : copy + LINE] = layout.mapping[line : line + LINE]
        layout.longs[layout.undo_places + number] = line
        layout.longs[layout.undo_count] = number + 1
        noted.add(line)

    def done(self) -> None:
        """All changes are made."""
        self._layout.longs[self._layout.undo_count] = 0
        self._noted.clear()

    def roll_back(self) -> None:
        """Nothing of it has happened."""
        layout = self._layout
        number = layout.longs[layout.undo_count]
        for each in range(min(max(number, 0), UNDO_LINES) - 1, -1, -1):
            line = layout.longs[layout.undo_places + each]
            copy = layout.undo_lines + each * LINE
            if 0 < line <= len(layout.mapping) - LINE:
                layout.mapping[line : line + LINE] = layout.mapping[copy : copy + LINE]
        self.done()
