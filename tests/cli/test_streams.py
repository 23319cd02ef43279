"""An output that lacks characters, is full or is closed: the verb says so in a line, without a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RULES = 'url: /\nrules: [{name: "größe 中", actor: ip, unit: second, rpu: 10}]\n'
DIANA = [sys.executable, "-c", "from diana.cli import main; main()"]


@pytest.fixture
def rules(tmp_path: Path) -> str:
    file = tmp_path / "rules.yaml"
    file.write_text(RULES, encoding="utf-8")
    return str(file)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    environ = {**os.environ, **environment}
    return subprocess.run(
        [*DIANA, *arguments], capture_output=True, env=environ, check=False, timeout=60
    )


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_characters_that_the_output_lacks_are_replaced(encoding: str, rules: str) -> None:
    ran = run("explain", rules, "GET", "/", PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert (ran.returncode, ran.stderr) == (0, b"")
    text = ran.stdout.decode(encoding)
    assert "größe ?" in text
    assert "9 of 10 left" in text


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_json_is_the_same_in_every_encoding(encoding: str, rules: str) -> None:
    arguments = ("explain", rules, "GET", "/", "--format", "json")
    ran = run(*arguments, PYTHONIOENCODING=encoding)
    (rule,) = json.loads(ran.stdout.decode(encoding))["rules"]
    assert rule["name"] == "größe 中"


def test_a_document_is_the_same_in_every_encoding(rules: str) -> None:
    assert run("pull", rules, PYTHONIOENCODING="latin-1").stdout == RULES.encode()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["explain", "{rules}", "GET", "/"], ["--help"]])
def test_a_full_disk(arguments: list[str], unbuffered: str, rules: str) -> None:
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [*DIANA, *(word.replace("{rules}", rules) for word in arguments)],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
            timeout=60,
        )
    assert ran.returncode == 1
    assert ran.stderr == b"Error: cannot write the output: No space left on device\n"


def test_a_closed_pipe(rules: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as pipe:
        ran = subprocess.run(
            [*DIANA, "explain", rules, "GET", "/"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    assert (ran.returncode, ran.stderr) == (1, b"")
