"""A busy machine shall not look like a lost server, but in the tests that lose one."""

from __future__ import annotations

import pytest

from tests.rules.patience import be_patient


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


@pytest.fixture
def starts_soon(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the remote rules are not there at the start, which waits for them for so long."""
    monkeypatch.setattr("diana.rules.watch.live_rules.START_WAIT_SECONDS", 1.0)
