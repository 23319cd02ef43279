"""For pytest, which finds it by its entry point: a fixture that empties all counters between tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def reset_limits() -> Iterator[None]:
    """All counters in memory are empty, before the test and after it. For every test: `usefixtures = ["reset_limits"]`."""
    # Not before it is used: every run of pytest where Diana is installed loads this file.
    from diana.testing.fake_clock import reset_counters

    reset_counters()
    yield
    reset_counters()
