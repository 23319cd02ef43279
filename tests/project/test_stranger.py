"""The open-closed promise: an unknown package adds a plug-in of every kind by entry points alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

STRANGER = Path(__file__).parents[1] / "stranger"

PLAY = """
import asyncio
import time
from pathlib import Path
from diana import Guard, Limiter, Request, load_rules
from diana.plugins import algorithms
from diana.testing import FakeClock, algorithm_laws, store_contract
from stranger.notebook import Notebook
from stranger.shelf import SHELF
from stranger.tally import TALLY

for code in ("SP", "RC"):
    algorithm_laws(algorithms()[code], examples=100)
store_contract(Notebook, examples=20)

clock = FakeClock()
limiter = Limiter("2/minute", algo="spacing", store="notebook://", clock=clock)
assert [bool(limiter.take("k")) for _ in range(3)] == [True, False, False]
clock.advance(30)
assert limiter.take("k")

limiter = Limiter("2/minute", algo="recent", store="notebook://", clock=clock)
charges = [limiter.take("k") for _ in range(3)]
assert list(map(bool, charges)) == [True, True, False]
limiter.refund(charges[0])
assert limiter.take("k")

Path("diana.yaml").write_text("url: /\\nrules: [{actor: [country, ip], unit: hour, rpu: 1, algo: SP}]")
guard = Guard.from_file("diana.yaml", clock=clock)
requests = [Request(headers={"X-Country": name}, peer="192.0.2.1") for name in ("at", "ch", "at")]
assert [bool(guard.check(request)) for request in requests] == [True, True, False]

Path("gateway.yaml").write_text("filters: [stamp: {word: seen}]\\nlimits: [{url: /, rules: [{unit: hour, rpu: 1}]}]")
(line,) = load_rules("gateway.yaml").settings.filters
sent = []

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})

async def send(message):
    sent.append(message)

asyncio.run(line.around(app)({"type": "http"}, None, send))
assert sent[0]["headers"] == [(b"x-stamp", b"seen")]
SHELF["rules"] = b"{url: /, rules: [{unit: hour, rpu: 1}]}"
followed = Guard.from_file("shelf://rules", clock=clock, observers=["tally"])
assert [bool(followed.check(Request())) for _ in range(2)] == [True, False]
assert TALLY == [True, False]
followed.close()

Path("sensor").write_text("95000")
Path("shed.yaml").write_text("shed: [{factor: heat, file: sensor}]\\nlimits: [{url: /, rules: [{unit: hour, rpu: 1000000}]}]")
hot = Guard.from_file("shed.yaml")
end = time.monotonic() + 60
while hot.check(Request()) and time.monotonic() < end:
    time.sleep(0.01)
shed = hot.check(Request()).shed
assert (shed.factor, shed.level, shed.value) == ("heat", 2, 95.0)
hot.close()
print("played")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stranger as pip installs it, apart from our own environment."""
    folder = tmp_path_factory.mktemp("stranger")
    source = folder / "source"
    subprocess.run(["cp", "-r", str(STRANGER), str(source)], check=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--target", str(folder / "site"), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "site"


def test_a_stranger_adds_a_plug_in_of_every_kind(installed: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    played = subprocess.run(
        [sys.executable, "-c", PLAY], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert played.stdout == "played\n", played.stderr


def test_without_assertions_the_laws_refuse_to_pass() -> None:
    code = "from diana.testing import *; from diana.plugins import algorithms; algorithm_laws(algorithms()['TB'])"
    answer = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True)
    assert "python -O switches off the assertions" in answer.stderr
