"""`diana gateway`, started as people start it, and what the README says of it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diana.cli.gateway import header_of_rule
from diana.cli.main import diana
from diana.rules.loading import rules_from_bytes
from tests.gateway.upstreams import (
    HEEDING,
    HELLO,
    PATIENCE,
    ask,
    connected,
    get,
    lines_of,
    read_exactly,
    read_head,
    says,
    status_of,
    to_the_end,
    upstream,
)

ROOT = Path(__file__).parents[2]
DIANA = [sys.executable, "-m", "diana"]
RULES = "limits: [{url: /, rules: [{name: three, unit: hour, rpu: 3, status: 429}]}]"
MANY = "limits:\n" + "".join(
    f"  - {{url: /{number}, rules: [{{unit: day, rpu: 1}}]}}\n" for number in range(4_000)
)
"""More to announce than a pipe holds."""

Start = Callable[..., tuple["subprocess.Popen[str]", int]]


@pytest.fixture
def rules(tmp_path: Path) -> str:
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)
    return str(file)


@pytest.fixture
def start() -> Iterator[Start]:
    """Run the gateway on a free port; it is stopped by its own pid."""
    started: list[subprocess.Popen[str]] = []

    def run(*options: str) -> tuple[subprocess.Popen[str], int]:
        gateway = subprocess.Popen(
            [*HEEDING, *DIANA, "gateway", "--bind", "127.0.0.1:0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(gateway)
        assert gateway.stdout is not None
        found = re.match(r"Diana listens on http://127\.0\.0\.1:(\d+) ", gateway.stdout.readline())
        if not found:
            gateway.kill()
        assert found, gateway.communicate()
        return gateway, int(found[1])

    yield run
    for gateway in started:
        if gateway.poll() is None:
            gateway.send_signal(signal.SIGINT)
            assert gateway.communicate(timeout=PATIENCE)[0].endswith("Stopped.\n")
            assert gateway.returncode == 0


def test_it_forwards_limits_and_logs(start: Start, rules: str) -> None:
    with upstream(says(HELLO)) as service:
        gateway, port = start("--upstream", service.url, "--rules", rules)
        assert gateway.stdout is not None
        told = [gateway.stdout.readline() for _ in range(2)]
        assert told == ["1 rule:\n", "  /: 3/hour by all, TB, local\n"]
        assert [status_of(ask(port, get("/"))) for _ in range(5)] == [200] * 3 + [429] * 2
        gateway.send_signal(signal.SIGTERM)
        out, err = gateway.communicate(timeout=PATIENCE)
    assert gateway.returncode == 0
    denied = re.compile(
        r"[-0-9T:]+Z GET '/' denied by rule '[^']+' \(3/hour by all\), retry after [0-9]+ s"
    )
    assert [bool(denied.fullmatch(line)) for line in err.splitlines()] == [True, True]
    lines = out.splitlines()
    assert sum('"GET / HTTP/1.1" 429 ' in line for line in lines) == 2
    assert lines[-1] == "Stopped."
    assert len(service.heads) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_still_announces_itself_is_heeded(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    file = tmp_path / "many.yaml"
    file.write_text(MANY)
    gateway, _ = start("--sample", "--rules", str(file))
    gateway.send_signal(number)
    out, err = gateway.communicate(timeout=PATIENCE)
    assert (out[-9:], err, gateway.returncode) == ("Stopped.\n", "", 0)


def test_the_access_log_can_be_switched_off(start: Start, rules: str) -> None:
    with upstream(says(HELLO)) as service:
        gateway, port = start("--upstream", service.url, "--rules", rules, "--no-access-log")
        ask(port, get("/"))
        gateway.send_signal(signal.SIGINT)
        assert "HTTP/1.1" not in gateway.communicate(timeout=PATIENCE)[0]


def test_names_with_an_underscore_are_let_through_by_name(start: Start, rules: str) -> None:
    with upstream(says(HELLO)) as service:
        options = ("--allow-underscore", "X_Trace_Id", "--allow-underscore", "x_b")
        _, port = start("--upstream", service.url, "--rules", rules, *options)
        ask(port, get("/", "X_Trace_Id: 7", "X_B: 8", "SCRIPT_NAME: /x1", "X_Account_Id: alice"))
    names = {name for name, _ in lines_of(service.heads[0]) if "_" in name}
    assert names == {"x_trace_id", "x_b"}


def until_nobody_listens(port: int) -> None:
    for _ in range(1_000):
        try:
            connected(port).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.01)
    raise AssertionError("it still lets people in")


def test_what_is_under_way_is_finished_when_it_is_stopped(start: Start, rules: str) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def behave(connection: socket.socket, _: bytes) -> None:
        asked.set()
        assert go_on.wait(PATIENCE)
        connection.sendall(HELLO)

    with upstream(behave) as service:
        gateway, port = start("--upstream", service.url, "--rules", rules)
        with connected(port) as idle, connected(port) as client:
            client.sendall(get("/"))
            assert asked.wait(PATIENCE)
            gateway.send_signal(signal.SIGTERM)
            assert to_the_end(idle) == b""  # who has nothing under way is let go at once
            until_nobody_listens(port)
            go_on.set()
            assert b" 200 OK" in read_head(client)
            assert read_exactly(client, 5) == b"hello"
            assert to_the_end(client) == b""
        assert gateway.communicate(timeout=PATIENCE)[0].endswith("Stopped.\n")
        assert gateway.returncode == 0


def test_waiting_for_the_rest_ends_with_the_grace(start: Start, rules: str) -> None:
    asked = threading.Event()

    def behave(connection: socket.socket, _: bytes) -> None:
        asked.set()
        connection.recv(1)  # says nothing until it is closed

    with upstream(behave) as service:
        options = ("--upstream", service.url, "--rules", rules, "--grace", "1s")
        gateway, port = start(*options)
        with connected(port) as client:
            client.sendall(get("/"))
            assert asked.wait(PATIENCE)
            gateway.send_signal(signal.SIGTERM)
            out, err = gateway.communicate(timeout=PATIENCE)
        assert out.endswith("Stopped.\n")
        assert "Traceback" not in err
        assert service.gone.wait(PATIENCE)


def test_an_upstream_that_breaks_off_leaves_no_trace_of_code(start: Start, rules: str) -> None:
    def behave(connection: socket.socket, _: bytes) -> None:
        connection.sendall(HELLO[:-1])
        connection.shutdown(socket.SHUT_RDWR)

    with upstream(behave) as service:
        gateway, port = start("--upstream", service.url, "--rules", rules)
        assert ask(port, get("/")).endswith(b"hell")
        gateway.send_signal(signal.SIGINT)
        out, err = gateway.communicate(timeout=PATIENCE)
    assert err == ""
    assert re.search(r'"GET / HTTP/1.1" 200 4 [0-9.]+ms "-" allowed aborted\n', out)


def run(*options: str) -> Result:
    return CliRunner().invoke(diana, ["gateway", *options])


def test_help_says_what_there_is() -> None:
    shown = run("--help").stdout
    for option in ("--upstream", "--rules", "--bind", "--store", "--sample", "--access-log"):
        assert option in shown
    for option in ("--connect-timeout", "--read-timeout", "--grace", "--rewrite-host"):
        assert option in shown
    for option in (
        "--body-timeout",
        "--body-rate",
        "--max-connections",
        "--allow-underscore",
        "--tune-process",
    ):
        assert option in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "write --upstream URL, such as http://127.0.0.1:9000, or --sample"),
        (["--sample", "--upstream", "http://x"], "write --upstream URL or --sample, not both"),
        (["--upstream", "127.0.0.1:9000"], "'127.0.0.1:9000' is no URL of a service; write one such as"),
        (["--sample", "--bind", "nowhere"], "'nowhere' is no address; write one such as 127.0.0.1:8080"),
        (["--sample", "--bind", "127.0.0.1:99999"], "is no address"),
        (["--sample", "--bind", "192.0.2.1:0"], "cannot listen on 192.0.2.1:0: "),
        (["--sample", "--grace", "soon"], "'soon' is no duration"),
        (["--sample", "--store", "nonsense://"], "nonsense"),
        (["--sample", "--body-rate", "0"], "0 is not in the range x>=1"),
        (["--sample", "--max-connections", "0"], "0 is not in the range x>=1"),
        (["--sample", "--max-connections", "1000000000"], "1000000000 connections need 2000000064 descriptors, and the limit is"),
        (["--sample", "--allow-underscore", "X-Own"], "x-own has no underscore, so it is forwarded anyway; leave it out"),
        (["--sample", "--allow-underscore", "X_Real_IP"], "x_real_ip is x-real-ip to some servers, which only the gateway may set"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_told_clearly(options: list[str], said: str, rules: str) -> None:
    answer = run("--rules", rules, *options)
    assert answer.exit_code in (1, 2)
    assert said in answer.output
    assert isinstance(answer.exception, SystemExit)


def test_without_rules_it_says_so() -> None:
    assert "Missing option '--rules'" in run("--sample").output
    assert (
        "nowhere.yaml: cannot be read: No such file"
        in run("--sample", "--rules", "nowhere.yaml").output
    )


def test_a_port_that_is_taken_is_said_so(rules: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = run("--sample", "--rules", rules, "--bind", f"127.0.0.1:{port}")
    assert answer.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in answer.output


def test_mistakes_in_the_rules_are_told_with_their_places(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(f"filters:\n  - signature: {{keys: {{app: env DIANA_NO_SUCH_KEY}}}}\n{RULES}")
    answer = run("--sample", "--rules", str(file))
    assert answer.exit_code == 1
    assert "rules.yaml:2:5: filters[0].keys: DIANA_NO_SUCH_KEY is not set" in answer.output
    file.write_text(f"filters: [acces]\n{RULES}")
    answer = run("--sample", "--rules", str(file))
    assert (
        "rules.yaml:1:11: filters[0]: 'acces' is no filter; did you mean access?" in answer.output
    )


def test_without_its_packages_it_says_what_to_install(rules: str) -> None:
    code = "import sys; sys.modules['aiohttp'] = None; import diana.cli; diana.cli.main()"
    answer = subprocess.run(
        [sys.executable, "-c", code, "gateway", "--sample", "--rules", rules],
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 1
    assert "pip install 'diana-limiter[gateway]'" in answer.stderr


def readme_commands() -> list[tuple[str, str]]:
    """Each `$ curl …` of the README's passage, and what stands below it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    passage = text.partition("## A gateway")[2].partition("```console\n")[2].partition("```")[0]
    parts = re.split(r"^\$ ", passage, flags=re.MULTILINE)[1:]
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


def test_the_curl_lines_of_the_readme_do_what_it_shows(start: Start) -> None:
    commands = readme_commands()
    assert len(commands) == 3
    gateway, port = start("--sample", "--rules", str(ROOT / "examples" / "diana.yaml"))
    assert gateway.stdout is not None
    printed = [gateway.stdout.readline() for _ in range(9)]
    tried = [line.strip() for line in printed if line.startswith("  curl ")]
    here = f"http://127.0.0.1:{port}"
    assert tried == [command.replace("http://127.0.0.1:8080", here) for command, _ in commands]
    for command, (_, shown) in zip(tried, commands, strict=True):
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=PATIENCE)
        assert done.stdout == shown


def test_what_is_printed_to_try_fits_the_rules(start: Start, rules: str) -> None:
    gateway, port = start("--sample", "--rules", rules)
    assert gateway.stdout is not None
    printed = list(iter(gateway.stdout.readline, "Stop with Ctrl-C.\n"))
    tried = [line for line in printed if line.startswith("  curl ")]
    assert tried == [f"  curl http://127.0.0.1:{port}/\n"]
    assert status_of(ask(port, get("/"))) == 200


def test_make_run_starts_it_with_the_sample() -> None:
    shown = subprocess.run(
        ["make", "--dry-run", "run"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "diana gateway --sample --rules examples/diana.yaml" in shown.stdout


@pytest.mark.parametrize(
    ("actor", "identity", "header"),
    [
        ("account", "", "X-Account-Id"),
        ("account", "identity: {account: header X-Api-Key}", "X-Api-Key"),
        ("account", "identity: {account: cookie session}", None),
        ("header X-Tenant", "", "X-Tenant"),
        ("[ip, device]", "", "X-Device-Id"),
        ("ip", "", None),
    ],
)
def test_what_to_try_names_the_header_that_the_rule_counts_by(
    actor: str, identity: str, header: str | None
) -> None:
    limits = f"limits: [{{url: /search, rules: [{{actor: {actor}, unit: hour, rpu: 9}}]}}]"
    policy = rules_from_bytes(f"{identity}\n{limits}".encode())
    found = header_of_rule(policy.rules[0], policy.settings)
    assert (found and found.lower()) == (header and header.lower())
