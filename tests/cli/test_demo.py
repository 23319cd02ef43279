"""`diana demo`, started as people start it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

PATIENCE = 30.0
"""Seconds; a demo that does not stop by then has failed."""
DIANA = [sys.executable, "-m", "diana"]
RULES = """
response: {status: 429}
limits:
  - url: /
    rules: [{name: you, actor: ip, unit: hour, rpu: 3}]
  - url: /degraded
    rules: [{actor: all, unit: hour, rpu: 1, status: 200, body: {html: <p>later</p>}}]
"""

Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start the demo on a free port; it is stopped by its own pid."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> str:
        # A test run in the background ignores SIGINT, and so would its children.
        command = ["env", "--default-signal=INT", *DIANA, "demo", "--port", "0", *options]
        demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(demo)
        assert demo.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/", demo.stdout.readline())
        assert found
        return found[0]

    yield start
    for demo in started:
        demo.send_signal(signal.SIGINT)
        assert demo.communicate(timeout=PATIENCE)[0].endswith("Stopped.\n")
        assert demo.returncode == 0


@pytest.fixture
def rules(tmp_path: Path) -> str:
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)
    return str(file)


def status_of(url: str) -> int:
    try:
        with urlopen(url) as answer:
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code


def test_without_a_file_five_pass_in_ten_seconds(serve: Serve) -> None:
    address = serve()
    begin = monotonic()
    statuses = [status_of(address) for _ in range(12)]
    passed = statuses.index(429)
    # One more every two seconds, if the machine is slow.
    assert 5 <= passed <= 5 + (monotonic() - begin) / 2
    assert set(statuses) == {200, 429}
    assert status_of(f"{address}favicon.ico") == 200


def test_ctrl_c_while_it_still_announces_itself_is_heeded(serve: Serve, tmp_path: Path) -> None:
    """The fixture stops it, as every demo, while it waits for room in the pipe."""
    file = tmp_path / "many.yaml"
    blocks = [f"- {{url: /{n}, rules: [{{unit: day, rpu: 1}}]}}" for n in range(4_000)]
    file.write_text("\n".join(["limits:", *blocks]))
    serve("--rules", str(file))


def test_the_page_shows_what_the_rules_said(serve: Serve, rules: str) -> None:
    address = serve("--rules", rules)
    for left in (2, 1, 0):
        with urlopen(address) as answer:
            page = answer.read().decode()
            assert "You may pass." in page
            assert f"✓ {left} of 3 left" in page
    with pytest.raises(HTTPError) as denied:
        urlopen(address)
    with denied.value as answer:
        assert answer.status == 429
        assert 1190 < int(answer.headers["Retry-After"]) <= 1200
        page = answer.read().decode()
        assert "Too soon: come back in" in page
        assert "denied by you; charged to none" in page


def test_a_rule_has_its_own_status_and_body(serve: Serve, rules: str) -> None:
    address = serve("--rules", rules)
    urlopen(f"{address}degraded").close()
    with urlopen(f"{address}degraded") as answer:
        assert (answer.status, answer.read()) == (200, b"<p>later</p>")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DIANA, *arguments], capture_output=True, text=True)


def test_help_and_version() -> None:
    shown = run("--help").stdout
    assert all(verb in shown for verb in ("check", "completion", "demo", "explain"))
    assert "--rules" in run("demo", "-h").stdout
    assert re.fullmatch(
        r"diana, version \d+\.\d+\.\d+, counting in (C|Python \(.+\))\n", run("--version").stdout
    )


def test_rules_that_cannot_be_used_are_told_with_their_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("url: /\nrules: [{unit: second, rpu: ten}]\n")
    answer = run("demo", "--rules", str(file))
    assert answer.returncode == 1
    assert "rules.yaml:2:29: rules[0].rpu: 'ten' is no whole number from 0" in answer.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--port", "99999"], "99999 is not in the range 0<=x<=65535"),
        (["--rules", "nowhere.yaml"], "File 'nowhere.yaml' does not exist"),
        (["--host", "192.0.2.1", "--port", "0"], "cannot listen on 192.0.2.1:0"),
    ],
)
def test_a_wrong_option_is_told_clearly(options: list[str], said: str) -> None:
    answer = run("demo", *options)
    assert answer.returncode in (1, 2)
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_port_that_is_taken_is_said_so(serve: Serve) -> None:
    port = serve().rstrip("/").rpartition(":")[2]
    answer = run("demo", "--port", port)
    assert answer.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in answer.stderr


def test_without_click_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['click'] = None; import diana.cli; diana.cli.main()"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 1
    assert "pip install 'diana-limiter[cli]'" in answer.stderr
