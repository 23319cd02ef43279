"""A busy machine shall not look like a lost server."""

from __future__ import annotations

import pytest

from tests.rules.patience import ANSWER_SECONDS, be_patient


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)
    for module in ("redis_client.handshake", "stores.redis.maintenance.heartbeat"):
        monkeypatch.setattr(f"diana.{module}.CONNECT_SECONDS", ANSWER_SECONDS)
