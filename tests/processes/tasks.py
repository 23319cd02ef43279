"""`served` as tasks of Celery, whose parent imports it before the workers are forked."""

from __future__ import annotations

import json
import os
from typing import Any

from tests.processes import served
from tests.processes.celery_app import celery_app

app = celery_app(os.environ["SERVED_BROKER"])


@app.task(name="take_often")  # type: ignore[untyped-decorator]
def take_often(times: int) -> list[dict[str, Any]]:
    return [json.loads(served.take()) for _ in range(times)]
