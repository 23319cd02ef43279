"""A busy machine shall not look like a lost server."""

from __future__ import annotations

import pytest

from tests.sources.patience import be_patient


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)
