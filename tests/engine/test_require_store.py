"""`require_store: true`: without its store, or with a wrong password, nothing starts."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from click.testing import CliRunner
from redis.backoff import NoBackoff
from redis.retry import Retry

from diana import AsyncGuard, ConfigError, Guard, Request, StoreError
from diana.asgi import RateLimitMiddleware as Asgi
from diana.cli.main import diana as command
from diana.rules.loading import rules_from_bytes
from diana.wsgi import RateLimitMiddleware as Wsgi
from tests.servers.cluster import Cluster
from tests.servers.programs import VALKEY_9 as VALKEY
from tests.servers.sentinel import SentinelGroup
from tests.servers.server import Server
from tests.stores.shared.zones import zone_name
from tests.web.calls import ask, hello

RULES = (
    "require_store: true\n%slimits: [{url: /, rules: [{unit: minute, rpu: 3, scope: global}]}]\n"
)
A_FEW_SECONDS = 4.0


@pytest.fixture(scope="module")
def locked() -> Iterator[Server]:
    with Server(VALKEY, "--requirepass", "right") as server:
        yield server


@pytest.fixture
def silent_port() -> Iterator[int]:
    """It accepts and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


def opened(store: Any, kind: Callable[..., Any] = Guard) -> Any:
    policy = rules_from_bytes((RULES % "store: memory://\n").encode())
    return kind(policy, store)


def test_a_store_that_is_there(valkey_url: str, locked: Server) -> None:
    for store in (valkey_url, f"redis://:right@127.0.0.1:{locked.port}", "memory://"):
        guard = opened(f"{store}?budget=10s" if "redis" in store else store)
        assert guard.check(Request())
        guard.close()


def test_a_zone_is_always_there() -> None:
    with zone_name() as name:
        guard = opened(f"shared://{name}?size=4m")
        assert guard.check(Request())
        guard.close()


def test_a_server_that_is_not_there(closed_port: int) -> None:
    said = (
        rf"store 127\.0\.0\.1:{closed_port} must be reachable at the start, because require_store is true "
        r"\(got: connection refused\); start the server, or correct host and port"
    )
    with pytest.raises(StoreError, match=said):
        opened(f"redis://127.0.0.1:{closed_port}")
    with pytest.raises(StoreError, match=said):
        opened(f"redis://127.0.0.1:{closed_port}", AsyncGuard)


@pytest.mark.parametrize(
    ("login", "said"),
    [
        (":wrong@", "correct the user or the password in the URL"),
        ("", r"write the password into the URL, such as redis://:\$\{REDIS_PASSWORD\}@host:6379"),
    ],
)
def test_a_login_that_is_refused(locked: Server, login: str, said: str) -> None:
    with pytest.raises(StoreError, match=said) as caught:
        opened(f"redis://{login}127.0.0.1:{locked.port}")
    assert "wrong@" not in str(caught.value)


def test_a_port_that_says_nothing_fails_within_a_few_seconds(silent_port: int) -> None:
    began = time.monotonic()
    with pytest.raises(StoreError, match="require_store is true"):
        opened(f"redis://127.0.0.1:{silent_port}")
    assert time.monotonic() - began < A_FEW_SECONDS


def test_fleets_of_servers(cluster: Cluster, sentinels: SentinelGroup, closed_port: int) -> None:
    for url in (cluster.url, sentinels.url):
        opened(url).close()
    for scheme in ("redis+cluster", "redis+sentinel"):
        name = "/name" if scheme.endswith("sentinel") else ""
        with pytest.raises(StoreError, match="require_store is true"):
            opened(f"{scheme}://127.0.0.1:{closed_port}{name}")


def test_a_client_of_the_application(locked: Server, closed_port: int) -> None:
    right = redis.Redis(port=locked.port, password="right")
    opened(right).close()
    once = Retry(NoBackoff(), 0)
    for port in (locked.port, closed_port):
        client = redis.Redis(port=port, retry=once)
        with pytest.raises(StoreError, match="store of the client must be reachable"):
            opened(client)
        client.close()
    right.close()
    with pytest.raises(ConfigError, match="got an asynchronous client"):
        opened(redis.asyncio.Redis(port=locked.port), AsyncGuard)


def test_no_store_at_all() -> None:
    policy = rules_from_bytes((RULES % "").encode())
    with pytest.raises(
        ConfigError, match=r"store must be a URL, because require_store is true \(got none\)"
    ):
        Guard(policy)
    Guard(policy, "memory://").close()


def test_without_it_a_guard_starts_and_counts_here(closed_port: int) -> None:
    text = RULES.replace("require_store: true", "require_store: false") % ""
    guard = Guard(rules_from_bytes(text.encode()), f"redis://127.0.0.1:{closed_port}?budget=10ms")
    assert guard.check(Request()).decisions[0].degraded
    guard.close()


def test_no_thread_is_left_behind(closed_port: int, tmp_path: Path) -> None:
    import threading

    before = set(threading.enumerate())
    file = tmp_path / "diana.yaml"
    file.write_text(RULES % f"store: redis://127.0.0.1:{closed_port}\n")
    with pytest.raises(StoreError):
        Guard.from_file(file)
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive(), thread.name


def test_middlewares_do_not_start(closed_port: int) -> None:
    policy = rules_from_bytes((RULES % f"store: redis://127.0.0.1:{closed_port}\n").encode())
    with pytest.raises(StoreError, match="connection refused"):
        Wsgi(lambda _, __: [], policy)
    limited = Asgi(hello, policy)
    with pytest.raises(StoreError, match="connection refused"):
        ask(limited)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    with pytest.raises(StoreError):
        asyncio.run(limited({"type": "lifespan"}, receive, send))
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert "connection refused" in sent[0]["message"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["gateway", "--upstream", "http://127.0.0.1:1", "--bind", "127.0.0.1:0"],
        ["gateway", "--upstream", "http://127.0.0.1:1", "--bind", "127.0.0.1:0", "--workers", "2"],
        ["demo", "--port", "0"],
    ],
)
def test_programs_do_not_start(arguments: list[str], closed_port: int, tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(RULES % f"store: redis://127.0.0.1:{closed_port}\n")
    result = CliRunner().invoke(command, [*arguments, "--rules", str(file)])
    assert result.exit_code == 1
    assert "Error: store 127.0.0.1:" in result.output
    assert "rules cannot be used" not in result.output


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("always", "'always' is neither true nor false; write one of them"),
        ("1", "'1' is neither true nor false; write one of them"),
        ("[true]", "a list where a text should be; write one value"),
    ],
)
def test_wrong_values(value: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rules_from_bytes((RULES.replace("true", value, 1) % "").encode())
    assert (caught.value.path, caught.value.line) == ("require_store", 1)
    assert message in str(caught.value)
