"""`shared://`: the contract of all stores, and what is a zone's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diana.stores.shared.store import SharedStore, zone_kind
from diana.testing import store_contract
from tests.stores.shared.zones import zone_name


@pytest.fixture(params=["python", "native"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each kind that this machine has; the native one only where it was built."""
    if request.param == "python":
        monkeypatch.setenv("DIANA_NATIVE", "0")
    else:
        monkeypatch.delenv("DIANA_NATIVE", raising=False)
    return str(zone_kind().kind)


@pytest.fixture
def name() -> Iterator[str]:
    with zone_name() as name:
        yield name


def test_it_keeps_the_contract(kind: str, name: str) -> None:
    def empty() -> SharedStore:
        store = SharedStore(name, 4 << 20)
        store.clear()
        return store

    store_contract(empty)
