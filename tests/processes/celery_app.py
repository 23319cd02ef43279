"""A Celery that keeps its messages in a folder, as the worker and the test both see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery import Celery


def celery_app(folder: Path) -> Any:
    for name in ("queue", "results", "control"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    app = Celery("tests", broker="filesystem://", backend=f"file://{folder / 'results'}")
    app.conf.broker_transport_options = {
        "data_folder_in": str(folder / "queue"),
        "data_folder_out": str(folder / "queue"),
        "control_folder": str(folder / "control"),
        "polling_interval": 0.02,
    }
    app.conf.worker_prefetch_multiplier = 1
    app.conf.broker_connection_retry_on_startup = True
    return app
