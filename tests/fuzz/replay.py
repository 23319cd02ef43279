"""What the code of a history needs that the fuzzer has printed: `replay(LimiterHistory(...))`."""

from __future__ import annotations

from typing import Any

from tests.fuzz.guards import (
    Check,
    Edit,
    Forget,
    GuardHistory,
    Look,
    Move,
    MoveToRetry,
    RefundRequest,
    Release,
    RemoveOverride,
    Sent,
    SetOverride,
    Settle,
)
from tests.fuzz.limiters import (
    Advance,
    AdvanceToReset,
    AdvanceToRetry,
    LimiterHistory,
    Limits,
    Peek,
    Rate,
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
    "Check",
    "Edit",
    "Forget",
    "GuardHistory",
    "LimiterHistory",
    "Limits",
    "Look",
    "Move",
    "MoveToRetry",
    "Peek",
    "Rate",
    "Refund",
    "RefundRequest",
    "Release",
    "RemoveOverride",
    "Reset",
    "Sent",
    "SetOverride",
    "Settle",
    "Take",
    "replay",
]


def replay(history: Any) -> None:
    """Raise what the fuzzer found."""
    with running(PROGRAMS) as servers, session(servers) as opened:
        opened.perform(history)
