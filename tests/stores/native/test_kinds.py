"""A zone in C, met by who counts in Python; and what only one of the kinds has room for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from diana import ConfigError, Limiter
from diana.stores.zone.store import SharedStore
from tests.stores.native.opened import zone
from tests.stores.shared.zones import zone_name


@pytest.mark.parametrize("switch", ["0", "off"])
def test_who_has_turned_the_c_part_off_is_told_that(switch: str) -> None:
    with zone_name() as name:
        SharedStore(name, 4 << 20)
        shown = subprocess.run(
            [sys.executable, "-m", "diana", "zone", name],
            env={**os.environ, "DIANA_NATIVE": switch},
            capture_output=True,
            text=True,
        )
    assert shown.returncode == 1
    said = f"of the native kind, and this process is counting in Python (DIANA_NATIVE={switch})"
    assert said in shown.stderr


def test_more_places_than_fit_are_refused_by_their_number() -> None:
    with zone() as store:
        Limiter("500 at once", store=store, name="fits")
        with pytest.raises(
            ConfigError, match=r"at most 500 places of a key, and 501 at once has more"
        ) as refusal:
            Limiter("501 at once", store=store, name="does not")
    assert refusal.value.path == "most"
