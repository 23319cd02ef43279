"""How long sources wait for their servers, in tests that are not about it: longer than a machine stands still."""

from __future__ import annotations

import pytest

ANSWER_SECONDS = 15.0
"""Whoever is slower than this is gone."""


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diana.rules.watch.live_rules.START_WAIT_SECONDS", ANSWER_SECONDS)
    monkeypatch.setattr("diana.rules.backends.http.TIMEOUT_SECONDS", ANSWER_SECONDS)
    monkeypatch.setattr("diana.rules.backends.http_client.ANSWER_SECONDS", ANSWER_SECONDS)
    monkeypatch.setattr("diana.rules.backends.zookeeper.ANSWER_SECONDS", ANSWER_SECONDS)
    # Shorter: many tests wait for a frozen server to be found out.
    monkeypatch.setattr("diana.rules.backends.redis.REPLY_SECONDS", 4.0)
