"""The command line, started as people start it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

DIANA = [sys.executable, "-m", "diana"]


@pytest.fixture
def address() -> Iterator[str]:
    command = [*DIANA, "demo", "--port", "0", "--limit", "3/hour"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        first = demo.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", first)
        assert found, first
        yield found[0]
        demo.send_signal(signal.SIGINT)
        assert demo.wait(10) == 0


def test_the_page_passes_until_it_does_not(address: str) -> None:
    for left in ("●●○", "●○○", "○○○"):
        with urlopen(address) as answer:
            assert answer.status == 200
            page = answer.read().decode()
            assert "You may pass." in page
            assert left in page
    with pytest.raises(HTTPError) as denied:
        urlopen(address)
    with denied.value as answer:
        assert answer.status == 429
        assert 1190 < int(answer.headers["Retry-After"]) <= 1200
        assert "Too soon: come back in" in answer.read().decode()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DIANA, *arguments], capture_output=True, text=True)


def test_help_and_version() -> None:
    assert "Serve a page" in run("--help").stdout
    assert "--limit" in run("demo", "-h").stdout
    assert re.fullmatch(r"diana, version \d+\.\d+\.\d+\n", run("--version").stdout)


def test_a_wrong_limit_is_a_usage_error_that_helps() -> None:
    answer = run("demo", "--limit", "5/w")
    assert answer.returncode == 2
    assert "'w' is no duration; write second, minute, hour, day" in answer.stderr


def test_a_port_that_is_taken_is_said_so(address: str) -> None:
    port = address.rstrip("/").rpartition(":")[2]
    answer = run("demo", "--port", port)
    assert answer.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in answer.stderr


def test_without_click_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['click'] = None; import diana.cli; diana.cli.main()"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 1
    assert "pip install 'diana-limiter[cli]'" in answer.stderr
