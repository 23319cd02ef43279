"""How long sources wait for their servers, in tests that are not about it: longer than a machine stands still."""

from __future__ import annotations

import pytest

ANSWER_SECONDS = 15.0
"""Whoever is slower than this is gone."""


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diana.sources.live.PATIENCE_SECONDS", ANSWER_SECONDS)
    monkeypatch.setattr("diana.sources.http.ALL_SECONDS", ANSWER_SECONDS)
    monkeypatch.setattr("diana.sources.etcd_talk.ANSWER_SECONDS", ANSWER_SECONDS)
    monkeypatch.setattr("diana.sources.zookeeper_session.ANSWER_SECONDS", ANSWER_SECONDS)
    # Shorter: many tests wait for a frozen server to be found out.
    monkeypatch.setattr("diana.sources.redis.ANSWER_SECONDS", 4.0)
