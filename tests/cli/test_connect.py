"""`diana check --connect`: whether the servers that a rules file names can be used, and what to write if not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diana.cli.main import diana
from tests.servers.certificates import Certificates
from tests.servers.cluster import Cluster
from tests.servers.ports import free_port
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.web import WebServer
from tests.stores.redis.test_acl import IN_A_CLUSTER, KEYS, RIGHTS
from tests.stores.shared.zones import zone_name

RULES = """
response: {{status: 429}}
{settings}
limits:
  - url: /
    rules:
      - {{name: a, unit: hour, rpu: 9, scope: global}}
      - {{name: b, unit: hour, rpu: 9, algo: SL, scope: global}}
      - {{name: c, most: 9, algo: C, scope: global}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "diana.yaml"


def connect(file: Path, settings: str, *options: str) -> Result:
    file.write_text(RULES.format(settings=settings))
    return CliRunner().invoke(
        diana, ["check", "--connect", str(file), *options], env={"DIANA_STORE": None}
    )


def test_a_store_that_can_be_used(redis7: Server, file: Path) -> None:
    redis7.ask("FLUSHALL")
    result = connect(file, f"store: {redis7.url}")
    assert result.exit_code == 0, result.output
    where = f"store {redis7.url}: "
    assert f"{where}Redis 7" in result.output
    assert f"{where}the user may do all that nodes need\n" in result.output
    assert f"{where}it keeps no append-only file: " in result.output
    assert redis7.ask("KEYS", "*") == [], "nothing is left behind"


def test_the_store_of_the_environment_wins(redis7: Server, file: Path) -> None:
    file.write_text(RULES.format(settings="store: redis://127.0.0.1:1"))
    result = CliRunner().invoke(
        diana, ["check", "--connect", str(file)], env={"DIANA_STORE": redis7.url}
    )
    assert (result.exit_code, redis7.url in result.output) == (0, True)


def test_findings_as_json(redis7: Server, file: Path) -> None:
    result = connect(file, f"store: {redis7.url}", "--format", "json")
    (report,) = json.loads(result.output)
    assert {one["kind"] for one in report["connections"]} == {"fine"}
    assert all(one["where"] == f"store {redis7.url}" for one in report["connections"])


def test_a_file_that_names_no_server(file: Path) -> None:
    result = connect(file, "")
    assert result.exit_code == 0
    assert "the file names no server: there is nothing to connect to" in result.output
    assert "nothing to connect" not in CliRunner().invoke(diana, ["check", str(file)]).output


def test_a_store_that_is_required_and_missing(file: Path, redis7: Server) -> None:
    result = connect(file, "require_store: true")
    assert result.exit_code == 1
    assert "require_store is true but no store is set" in result.output
    assert "so the start fails; write store: redis://HOST:PORT, set DIANA_STORE" in result.output
    assert "on this machine only" not in result.output
    plain = CliRunner().invoke(diana, ["check", str(file)])
    assert (plain.exit_code, "1 warning" in plain.output) == (0, True)
    found = CliRunner().invoke(
        diana, ["check", "--connect", str(file)], env={"DIANA_STORE": redis7.url}
    )
    assert found.exit_code == 0, found.output


def test_a_password_for_a_server_without_one(file: Path, redis7: Server) -> None:
    result = connect(file, f"store: {redis7.url.replace('://', '://:secret@')}")
    assert result.exit_code == 1
    assert "remove user and password from the URL, such as redis://host" in result.output
    assert "write the password" not in result.output


def test_a_server_that_is_not_there(file: Path) -> None:
    url = f"redis://:SECRET@127.0.0.1:{free_port()}"
    result = connect(file, f"store: {url}")
    assert result.exit_code == 1
    assert "connection refused; start the server, or correct host and port\n" in result.output
    assert "SECRET" not in result.output


@pytest.mark.parametrize(
    ("login", "said"),
    [
        ("", "write the password into the URL, such as redis://:${REDIS_PASSWORD}@host:6379"),
        (":wrong@", "correct the user or the password in the URL"),
        ("nobody:right@", "correct the user or the password in the URL"),
        (":right@", None),
    ],
)
def test_a_password(login: str, said: str | None, file: Path) -> None:
    with Server(REDIS_7) as server:
        server.ask("CONFIG", "SET", "requirepass", "right")
        result = connect(file, f"store: {server.url.replace('://', f'://{login}')}")
    assert result.exit_code == (1 if said else 0), result.output
    assert (said or "all that nodes need") in result.output


def test_tls(tmp_path: Path, file: Path, redis7: Server) -> None:
    certificates = Certificates.make(tmp_path)
    with Server(REDIS_7, certificates=certificates) as server:
        unknown = connect(file, f"store: {server.url}")
        trusted = connect(
            file, f"store: {server.url}?ssl_ca_certs={certificates.certificate('authority')}"
        )
    assert unknown.exit_code == 1
    assert "name the authority that signed it: ?ssl_ca_certs=/path/of/ca.pem" in unknown.output
    assert trusted.exit_code == 0, trusted.output
    plain = connect(file, f"store: {redis7.url.replace('redis:', 'rediss:')}")
    assert "if this port speaks no TLS, write redis:// instead of rediss://" in plain.output


def allow(server: Server, rights: list[str]) -> str:
    server.ask("ACL", "SETUSER", "node", "reset", "on", ">pass", *KEYS, "-@all", *rights)
    return server.url.replace("://", "://node:pass@")


def test_the_documented_rights_are_enough(file: Path) -> None:
    with Server(REDIS_7) as server:
        result = connect(file, f"store: {allow(server, RIGHTS)}")
    assert result.exit_code == 0, result.output
    assert "user 'node' may do all that nodes need" in result.output


@pytest.mark.parametrize(
    ("right", "what"),
    [
        ("+evalsha", "a decision by TB"),
        ("+zcount", "a decision by SL"),
        ("+zadd", "a decision by C"),
        ("+script|load", "loading a script"),
        ("+set", "publishing a name"),
        ("+zcard", "a heartbeat"),
    ],
)
def test_a_right_that_is_missing(right: str, what: str, file: Path) -> None:
    with Server(REDIS_7) as server:
        url = allow(server, [one for one in RIGHTS if one != right])
        result = connect(file, f"store: {url}")
    assert result.exit_code == 1, result.output
    assert f"{what} is refused: " in result.output
    assert "the user's rights: docs/howto/redis-tls-and-acl.md" in result.output


def test_keys_that_the_user_may_not_touch(file: Path) -> None:
    with Server(REDIS_7) as server:
        url = allow(server, RIGHTS)
        result = connect(file, f"store: {url}\nnamespace: other")
    assert result.exit_code == 1
    assert "a heartbeat is refused: " in result.output


def test_a_replica_and_eviction(file: Path) -> None:
    with Server(REDIS_7) as master, Server(REDIS_7) as replica:
        replica.ask("REPLICAOF", "127.0.0.1", str(master.port))
        found = connect(file, f"store: {replica.url}")
        master.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        evicting = connect(file, f"store: {master.url}")
        strict = connect(file, f"store: {master.url}", "--strict")
    assert found.exit_code == 1
    assert (
        f"is a replica, and refuses writes; write its master, 127.0.0.1:{master.port}"
        in found.output
    )
    assert (evicting.exit_code, strict.exit_code) == (0, 1)
    assert "warning: it evicts by allkeys-lru" in evicting.output


def test_a_cluster(cluster: Cluster, file: Path) -> None:
    assert IN_A_CLUSTER
    result = connect(file, f"store: {cluster.url}")
    assert result.exit_code == 0, result.output
    assert result.output.count(" answers in ") == len(cluster.nodes)
    alone = connect(file, f"store: {cluster.nodes[0].url}")
    assert alone.exit_code == 1
    assert "write redis+cluster:// instead of redis://" in alone.output


def test_rules_from(file: Path) -> None:
    with WebServer() as web:
        web.document = b"url: /\nrules: [{unit: hour, rpu: 9}]\n"
        fine = connect(file, f"rules_from: {web.url}")
        web.document = b"url: /\nrulez: []\n"
        wrong = connect(file, f"rules_from: {web.url}")
        web.document = None
        missing = connect(file, f"rules_from: {web.url}")
    assert fine.exit_code == 0, fine.output
    assert f"rules_from {web.url}: 1 rules, version " in fine.output
    assert wrong.exit_code == missing.exit_code == 1
    assert "did you mean rules?" in wrong.output
    assert f"answered 404; until it answers, nodes use the rules of {file}" in missing.output


def test_a_zone(file: Path) -> None:
    with zone_name() as name:
        result = connect(file, f"local_store: shared://{name}")
        assert f"shared://{name}: there is no such zone yet" in result.output
        assert result.exit_code == 0


def test_standard_input_and_a_file_that_is_not_there() -> None:
    rules = "url: /\nrules: [{name: a, unit: hour, rpu: 9}]\n"
    result = CliRunner().invoke(diana, ["check", "-"], input=rules)
    assert (result.exit_code, result.output.splitlines()[0]) == (0, "standard input: 1 rule")
    result = CliRunner().invoke(diana, ["check", "-"], input="rulez: 3")
    assert result.exit_code == 1
    assert result.output.startswith("standard input:1:1: rulez: ")
    missing = CliRunner().invoke(diana, ["check", "/nosuch"], color=True, env={"NO_COLOR": ""})
    assert missing.exit_code == 2
    assert missing.output.startswith("/nosuch: cannot be read"), "no empty color codes"


def test_a_document_that_is_too_long_is_not_read_whole() -> None:
    result = CliRunner().invoke(diana, ["check", "-"], input=b"#" * (2 << 20))
    assert result.exit_code == 1
    assert "the file is over 1 MiB" in result.output
