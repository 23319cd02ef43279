from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from diana.stores.memory.eviction import KeyCountIndex


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([-1, 1]), st.booleans()), max_size=60))
def test_the_fullest_has_the_most_and_idle_ones_if_any_as_full_has(
    steps: list[tuple[int, int, bool]],
) -> None:
    crowd = KeyCountIndex()
    places: dict[int, int] = {}
    for table, change, has_idle in steps:
        before = places.pop(table, 0)
        keys = before // 2 + change
        after = 2 * keys + has_idle if keys > 0 else 0
        crowd.move(table, before, after)
        if after:
            places[table] = after
        if places:
            assert places[crowd.fullest()] == max(places.values())
