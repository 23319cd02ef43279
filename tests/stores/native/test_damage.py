"""A zone's memory as others have left it: a clear error or a fresh zone, never a crash, and never more than the limit of a fresh one."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from diana.core.errors import ConfigError
from diana.stores.c_kernels import kernels
from diana.stores.zone.store import SharedStore
from diana.stores.zone.zone_file import path_of_zone
from tests.stores.shared.zones import zone_name

ROOT = Path(__file__).parents[3]
TAKES = """
import sys
from diana import ConfigError, Limiter
try:
    takes = [Limiter("5/day", algo=code, store=f"shared://{sys.argv[1]}", name="l").take for code in ("TB", "W", "SW", "SL")]
except ConfigError as error:
    print("refused", error)
else:
    print(max(sum(bool(take("k")) for _ in range(20)) for take in takes))
"""


def test_words_written_over() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.stores.native.damage", "3", "60"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


@pytest.mark.parametrize("seed", range(12))
def test_files_of_all_kinds(seed: int) -> None:
    """Cut, grown, empty, or with garbage anywhere, its header included; opened by another process."""
    chance = random.Random(seed)
    with zone_name() as name:
        store = SharedStore(name, 4 << 20)
        store.clear()
        del store
        path = path_of_zone(name)
        content = bytearray(path.read_bytes())
        match seed % 4:
            case 0:
                content = content[: chance.randrange(len(content))]
            case 1:
                content += bytes(chance.randrange(1, 9_000))
            case 2:
                for _ in range(200):
                    content[chance.randrange(8_192)] = chance.randrange(256)
            case 3:
                for _ in range(20_000):
                    content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content)
        done = subprocess.run(
            [sys.executable, "-c", TAKES, name], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        if done.stdout.startswith("refused"):
            return
        if seed % 4 == 3:
            # What was written over may be the very counter, and then it counts on from there; but never does everything pass.
            assert int(done.stdout) < 20
        else:
            assert done.stdout == "5\n"


def test_a_body_that_another_build_laid_out_is_refused() -> None:
    native, body = kernels(), bytearray(1 << 20)
    with pytest.raises(ValueError, match="something else"):
        native.Counters(0, body, bytes(16), 0)
    native.lay_out(body)
    native.Counters(0, body, bytes(16), 0)
    body[8] ^= 1
    with pytest.raises(ValueError, match="another build"):
        native.Counters(0, body, bytes(16), 0)
    body[8] ^= 1
    with pytest.raises(ValueError, match="another size"):
        native.adopt(memoryview(body)[: 1 << 19])
    with pytest.raises(ValueError, match="too small"):
        native.lay_out(bytearray(4_096))


def test_a_zone_too_small_is_said_in_words() -> None:
    with zone_name() as name, pytest.raises(ConfigError):
        SharedStore(name, 4_096)
