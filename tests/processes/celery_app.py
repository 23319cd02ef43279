"""A Celery that keeps its messages in a server of its own, as the worker and the test both see it."""

from __future__ import annotations

from typing import Any

from celery import Celery


def celery_app(broker: str) -> Any:
    app = Celery("tests", broker=broker, backend=broker)
    app.conf.worker_prefetch_multiplier = 1
    app.conf.broker_connection_retry_on_startup = True
    return app
