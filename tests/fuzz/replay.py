"""What the code of a history needs that the fuzzer has printed: `replay(LimiterHistory(...))`."""

from __future__ import annotations

from typing import Any

from tests.fuzz.limiters import (
    Advance,
    AdvanceToReset,
    AdvanceToRetry,
    LimiterHistory,
    Limits,
    Peek,
    Refund,
    Reset,
    Take,
)
from tests.fuzz.session import session
from tests.servers.programs import PROGRAMS
from tests.servers.running import running

__all__ = [
    "Advance",
    "AdvanceToReset",
    "AdvanceToRetry",
    "LimiterHistory",
    "Limits",
    "Peek",
    "Refund",
    "Reset",
    "Take",
    "replay",
]


def replay(history: Any) -> None:
    """Raise what the fuzzer found."""
    with running(PROGRAMS) as servers, session(servers) as opened:
        opened.perform(history)
