"""What a server sends is printed and logged with escapes: it controls no terminal and begins no line of a log."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diana import Guard
from diana.cli.main import diana
from diana.core.errors import ConfigError, SourceError
from diana.redis_client.reply_errors import Failure
from diana.rules import open_source
from diana.rules.loading import rules_from_bytes
from diana.rules.watch.live_rules import LiveRules
from tests.servers.waiting import until

HOSTILE = "\x1b]0;owned\x07\x9b31m\u202e\x7f"
ESCAPED = r"\x1b]0;owned\x07\x9b31m\u202e\x7f"
RULES = "url: /\nrules: [{name: all, unit: hour, rpu: 9}]\n"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(diana, arguments)


def is_harmless(text: str) -> bool:
    return all(sign.isprintable() or sign == "\n" for sign in text)


@contextmanager
def answering(answer: Callable[[bytes], bytes]) -> Iterator[int]:
    """A server that answers each piece that it reads; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(client: socket.socket) -> None:
            with client:
                while piece := client.recv(1 << 16):
                    reply = answer(piece)
                    client.sendall(reply)
                    if reply.startswith(b"HTTP") or b"HTTP/" in piece:
                        return

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def http_answer(status: str, *lines: str, body: str = "") -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body.encode())}", "Connection: close"]
    return "\r\n".join([*head, *lines, "", body]).encode("latin-1", "replace")


@pytest.mark.parametrize("verb", ["pull", "watch"])
def test_an_answer_that_is_not_http(verb: str) -> None:
    with answering(lambda _: f"GARBAGE {HOSTILE}\rtail\r\n\r\n".encode()) as port:
        result = run(verb, f"http://127.0.0.1:{port}/rules")
    assert result.exit_code == 1
    assert r"\x1b]0;owned\x07" in result.output
    assert is_harmless(result.output), ascii(result.output)


def test_an_etag(tmp_path: Path) -> None:
    """Folded over two lines, and with what a terminal would obey."""
    etag = 'ETag: "a\x1b[31m\r\n\tFORGED"'
    there = http_answer("200 OK", etag, body=RULES)
    file = tmp_path / "rules.yaml"
    file.write_text(RULES.replace("rpu: 9", "rpu: 10"))

    def answer(asked: bytes) -> bytes:
        return http_answer("204 No Content") if asked.startswith(b"PUT") else there

    with answering(answer) as port:
        result = run("push", str(file), f"http://127.0.0.1:{port}/rules", "--yes")
    assert result.exit_code == 0, result.output
    assert r"\x1b[31m" in result.output
    assert is_harmless(result.output), ascii(result.output)
    (line,) = [line for line in result.output.splitlines() if "FORGED" in line]
    assert line.startswith("published"), "the server began a line of its own"


@pytest.mark.parametrize("verb", ["nodes", "peek", "pull", "publish-rules"])
def test_the_error_of_a_redis(verb: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)
    with answering(lambda asked: f"-ERR {HOSTILE}\r\n".encode() * asked.count(b"*")) as port:
        url = f"redis://127.0.0.1:{port}"
        arguments = {
            "nodes": [url],
            "peek": [url, "all"],
            "pull": [url],
            "publish-rules": [str(file), "--once", "--store", url],
        }[verb]
        result = run(verb, *arguments)
    assert result.exit_code == 1, result.output
    assert ESCAPED in result.output
    assert is_harmless(result.output), ascii(result.output)


def test_the_error_of_an_etcd() -> None:
    body = '{"error": "no \\u001b[31m way\\nFORGED \\u202e"}'
    with answering(lambda _: http_answer("400 Bad Request", body=body)) as port:
        result = run("pull", f"etcd://127.0.0.1:{port}/rules")
    assert result.output.startswith("Error: etcd answered 400: no ")
    assert len(result.output.splitlines()) == 1
    assert is_harmless(result.output), ascii(result.output)


def test_a_rule_of_a_server_in_diff(tmp_path: Path) -> None:
    hostile = 'url: /\nrules: [{name: all, unit: hour, rpu: 9, body: "a\\e[31m\\u202e"}]\n'
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)
    with answering(lambda _: http_answer("200 OK", 'ETag: "1"', body=hostile)) as port:
        shown = run("diff", str(file), f"http://127.0.0.1:{port}/rules").output
        as_json = run(
            "diff", str(file), f"http://127.0.0.1:{port}/rules", "--format", "json"
        ).output
    assert r"a\x1b[31m\u202e" in shown
    assert is_harmless(shown), ascii(shown)
    assert is_harmless(as_json), ascii(as_json)


def test_a_document_is_printed_as_it_is_unless_a_terminal_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_bytes(b"# \x1b[31m\r\n\tgr\xc3\xbcn\n")
    result = run("pull", str(file))
    assert result.stdout_bytes == file.read_bytes()


def test_what_is_logged_of_a_redis(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="diana")
    rules = rules_from_bytes(b"{url: /, rules: [{unit: hour, rpu: 9, scope: global}]}")
    with answering(lambda asked: f"-ERR {HOSTILE}\r\n".encode() * asked.count(b"*")) as port:
        guard = Guard(rules, f"redis://127.0.0.1:{port}")
        until(lambda: "owned" in caplog.text, "the store is lost")
        guard.close()
    lines = [record.getMessage() for record in caplog.records]
    assert any(ESCAPED in line for line in lines)
    assert all(line.isprintable() for line in lines), lines


def test_what_is_logged_of_a_rules_server(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with answering(lambda _: f"GARBAGE {HOSTILE}\rtail\r\n\r\n".encode()) as port:
        file = tmp_path / "rules.yaml"
        limits = "limits: [{url: /, rules: [{unit: hour, rpu: 9}]}]"
        file.write_text(f"rules_from: http://127.0.0.1:{port}/rules\n{limits}\n")
        live = LiveRules(file)
        until(lambda: "GARBAGE" in caplog.text, "the problem is logged")
        (problem,) = live.problems
        live.close()
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert problem.message.isprintable()


def test_a_long_answer_is_cut() -> None:
    with answering(lambda _: b"x" * 50_000 + b"\r\n\r\n") as port:
        source = open_source(f"http://127.0.0.1:{port}/rules")
        with pytest.raises(SourceError) as caught:
            source.load()
    assert len(str(caught.value)) == 2_000


@pytest.mark.parametrize("kind", [SourceError, Failure, ConfigError])
def test_errors_that_quote_a_server_are_harmless(kind: type[Exception]) -> None:
    assert str(kind(f"server: {HOSTILE}")) == f"server: {ESCAPED}"
    assert str(kind("größer als 中文 – 🙂")) == "größer als 中文 – 🙂"
