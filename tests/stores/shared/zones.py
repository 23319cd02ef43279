"""Zones for tests: each with a name of its own, removed afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from diana.stores.zone.limit_names import path_of_names
from diana.stores.zone.zone_file import path_of_zone


@contextmanager
def zone_name() -> Iterator[str]:
    name = f"test-{uuid4().hex}"
    try:
        yield name
    finally:
        path_of_zone(name).unlink(missing_ok=True)
        path_of_names(path_of_zone(name)).unlink(missing_ok=True)
