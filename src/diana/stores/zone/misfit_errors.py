"""What is said of a limit whose states do not fit into a zone, of either kind."""

from __future__ import annotations

from diana.core.counter import CounterSpec
from diana.core.errors import ConfigError
from diana.core.limit import uses_slots


def too_many_entries(meter: CounterSpec, most: int) -> ConfigError:
    """Of a log: each request that counts is an entry, or each place that is taken."""
    if uses_slots(meter.algorithm):
        return ConfigError(
            f"this kind of a zone keeps at most {most:,} places of a key, and {meter.limit} has more; write a smaller number, "
            "or count it in memory:// or in Redis",
            path="most",
        )
    return ConfigError(
        f"a zone keeps at most {most:,} entries of a log, and {meter.limit} has more; write a smaller number, "
        "or take a sliding window (SW)",
        path="rpu",
    )
