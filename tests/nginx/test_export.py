"""What `diana export nginx` writes, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from diana.cli.main import diana
from diana.core.errors import ConfigError
from diana.core.request import Request
from diana.guard import Guard
from diana.nginx.exporter import export_nginx
from diana.nginx.rules_json import ALGORITHMS, wire_rules
from diana.responses.denial_response import ResponseBuilder
from diana.rules.document.readers import UnbuiltField
from diana.rules.document.rule_fields import rule_fields
from diana.rules.loading import load_rules
from tests.servers.limiting_nginx import LimitingNginx

OBEYED = {
    "actor": "header X-Tenant",
    "unit": "minute",
    "rpu": "{free: 5, else: 7}",
    "algo": "W",
    "scope": "global",
    "cost": "2",
    "when_down": "closed",
    "mode": "shadow",
    "drop": "random",
    "missing": "deny",
    "status": "429",
    "body": "no",
    "name": "odd",
    "burst": "9",
    "nodelay": "true",
    "delay": "1",
    "max_wait": "2s",
    "slices": "7",
    "align": "first",
    "overrides": "{acme: {rpu: 9}}",
    "allow": "{header X-Token: [secret]}",
    "only": "{ip: [10.0.0.0/8]}",
    "deny": "{header X-Token: [stolen]}",
}
"""A value of each field that nginx obeys, other than the default."""
REFUSED = {"charge_on": "[401]", "scope": "leased", "algo": "SL"}
"""And values that it refuses."""
OF_REFUSED_ALGORITHMS = {"most": "C", "hold": "C", "retry": "C", "max_waiting": "C"}
"""Fields of algorithms that it refuses as a whole."""
NEEDS = {
    "nodelay": "algo: LB, burst: 3",
    "delay": "algo: LB, burst: 3",
    "max_wait": "algo: LB",
    "slices": "algo: SW",
    "align": "algo: W",
    "drop": "scope: global",
    "overrides": "actor: account",
}
FIELDS = sorted(
    {name for name, read in rule_fields().items() if not isinstance(read, UnbuiltField)}
    | {"overrides", "allow", "only", "deny"}
)


def exported(rules: str, folder: Path, identity: str = "") -> str:
    file = folder / "diana.yaml"
    file.write_text(identity + rules, encoding="utf-8")
    return wire_rules(load_rules(file))


def rule(**fields: str) -> str:
    all_fields = {"unit": "second", "rpu": "7", **fields}
    written = ", ".join(f"{name}: {value}" for name, value in all_fields.items())
    return f"limits: [{{url: /, rules: [{{{written}}}]}}]"


TIER = "identity: {tier: header X-Plan, trust_tier: true}\n"


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_a_rule_is_obeyed_or_refused(field: str, tmp_path: Path) -> None:
    if field in OF_REFUSED_ALGORITHMS:
        assert OF_REFUSED_ALGORITHMS[field] not in ALGORITHMS
        return
    assert field in OBEYED or field in REFUSED, "say here what nginx does with this field"
    needed = dict(pair.split(": ") for pair in NEEDS.get(field, "").split(", ") if pair)
    plain = exported(rule(**needed), tmp_path, TIER)
    if field in OBEYED:
        # It makes a difference to what nginx is told.
        other = json.loads(exported(rule(**{**needed, field: OBEYED[field]}), tmp_path, TIER))
        assert other["rules"] != json.loads(plain)["rules"]
    if field in REFUSED:
        with pytest.raises(ConfigError) as refusal:
            exported(rule(**{**needed, field: REFUSED[field]}), tmp_path, TIER)
        said = refusal.value.message
        assert said.startswith("line 2, column ")
        assert "rule '" in said
        assert field in said


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (rule(scope="divided"), "scope: divided"),
        ("limits: [{url: /, rules: [{algo: C, most: 3}]}]", "algo: C is not known there"),
        (rule(algo="SL", scope="global"), "when_down: open or closed"),
        (rule(rpu="{free: 5, else: 7}"), "identity: tier:"),
        ("shed: default\n" + rule(), "shed: nginx knows nothing"),
    ],
)
def test_what_it_cannot_obey_is_refused(rules: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        exported(rules, tmp_path)


def test_all_reasons_are_told_at_once_and_nothing_is_written(tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(
        "limits: [{url: /, rules: [{name: one, unit: second, rpu: 1, scope: leased}, "
        "{name: two, unit: second, rpu: 1, charge_on: 5xx}]}]"
    )
    result = CliRunner().invoke(diana, ["export", "nginx", str(file), "-o", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "rule 'one'" in result.output
    assert "rule 'two'" in result.output
    assert not (tmp_path / "out").exists()


def test_secrets_are_digests_and_the_password_is_for_the_master_only(tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(
        "store: redis://me:s3cr3t@127.0.0.1/3\nlimits: [{url: /, rules: [{unit: second, rpu: 1, actor: account, scope: global, "
        "allow: {header X-Token: [classified]}, overrides: {confidential: {rpu: 9}}}]}]"
    )
    out = tmp_path / "out"
    result = CliRunner().invoke(diana, ["export", "nginx", str(file), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert f"include {out}/diana.conf;" in result.output
    readable = [path for path in out.rglob("*") if path.is_file() and path.stat().st_mode & 0o44]
    text = "".join(path.read_text(encoding="utf-8", errors="replace") for path in readable)
    assert (out / "settings.json") not in readable
    assert not any(word in text for word in ("classified", "confidential", "s3cr3t"))
    store = json.loads((out / "settings.json").read_text())["store"]
    assert store["login"] == {"username": "me", "password": "s3cr3t", "db": 3}


@pytest.mark.parametrize(
    ("store", "reason"),
    [
        ("redis+sentinel://h:1/m", "does not ask sentinels"),
        ("rediss://h", "without TLS"),
    ],
)
def test_stores_that_nginx_does_not_reach_are_refused(
    store: str, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(rule(scope="global"))
    with pytest.raises(ConfigError, match=reason):
        export_nginx(load_rules(file), store, tmp_path / "out")


def test_exporting_again_keeps_the_lock(tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(rule())
    out = tmp_path / "out"
    export_nginx(load_rules(file), None, out)
    inode = (out / "lock").stat().st_ino
    export_nginx(load_rules(file), None, out)
    assert (out / "lock").stat().st_ino == inode


def test_every_module_that_lua_asks_for_is_there(tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(rule())
    export_nginx(load_rules(file), None, tmp_path / "out")
    lua = tmp_path / "out" / "lua"
    texts = [source.read_text(encoding="utf-8") for source in lua.rglob("*.lua")]
    wanted = {name for text in texts for name in re.findall(r"require '(diana\.[\w.]+)'", text)}
    assert wanted == {name for name in wanted if (lua / f"{name.replace('.', '/')}.lua").is_file()}
    assert "diana.kernels" in wanted


ANSWERS = """
response: {headers: [ietf, legacy, retry-after], status: 429}
limits:
  - {url: /plain, rules: [{name: "pl\\"ain é", unit: day, rpu: 1}]}
  - {url: /burst, rules: [{unit: day, rpu: 1, burst: 3, cost: 2}]}
  - {url: /window, rules: [{unit: day, rpu: 1, algo: W, align: first, status: 503}]}
  - {url: /text, rules: [{unit: day, rpu: 1, body: "Später"}]}
  - {url: /many, rules: [{unit: day, rpu: 1, body: {html: <b>no</b>, json: "{}"}, status: 200}, {name: x, unit: 36h, rpu: 1}]}
  - {url: /empty, rules: [{unit: day, rpu: 1, status: 204}]}
  - {url: /refused, rules: [{name: first, unit: day, rpu: 1}, {actor: account, unit: day, rpu: 1, missing: deny}]}
  - {url: /shadow, rules: [{unit: day, rpu: 1, mode: shadow}, {name: seen, unit: day, rpu: 1}]}
"""
ACCEPTS = [
    None, "text/html", "text/plain;q=0.9, text/html;q=0.8", "*/*", "application/json", "text/*;q=0.1, text/html", "nonsense",
    "text/html;q=2",     "application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/html;level=1;q=0.3,text/plain; q=0.31",
    ",,text/plain", "x" * 600,
]  # fmt: skip
TOLD = (
    "cache-control", "content-type", "content-length", "retry-after", "ratelimit", "ratelimit-policy", "x-ratelimit-limit",
    "x-ratelimit-remaining", "x-ratelimit-reset",
)  # fmt: skip


def without_seconds(text: str) -> str:
    """Between the two askings time has passed: of a day or so, or of two, never an hour."""
    return re.sub(r"\b(8[2-6]|12[5-9]|169|17[0-2])\d{3}\b", "N", text)


def test_answers_are_those_of_python_word_for_word(tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(ANSWERS, encoding="utf-8")
    guard = Guard(load_rules(file))
    answers = ResponseBuilder(guard.policy)
    paths = [block["url"] for block in _blocks(ANSWERS)]
    with LimitingNginx(ANSWERS, workers=2) as nginx, httpx.Client(timeout=60) as client:
        for path in paths:
            for accept in ACCEPTS:
                headers = {"accept": accept} if accept else {"accept": ""}
                sent = client.build_request("GET", nginx.url + path, headers=headers)
                if accept is None:
                    del sent.headers["accept"]
                reply = client.send(sent)
                verdict = guard.check(
                    Request("GET", path, {"accept": accept} if accept else {}, peer="127.0.0.1")
                )
                if verdict:
                    status, fields, body = 200, answers.fields(verdict), b"passed"
                else:
                    status, fields, body = answers.denial(verdict)
                expected = {name.decode(): value.decode() for name, value in fields}
                found = {name: reply.headers[name] for name in TOLD if name in reply.headers}
                if verdict:
                    found.pop("content-type")
                    found.pop("content-length", None)
                at = (path, accept)
                assert (at, reply.status_code) == (at, status)
                assert (at, _plain(found)) == (at, _plain(expected))
                assert (at, without_seconds(reply.text)) == (at, without_seconds(body.decode()))
    guard.close()


def _plain(headers: dict[str, str]) -> dict[str, str]:
    return {name: without_seconds(value) for name, value in headers.items()}


def _blocks(rules: str) -> list[dict[str, str]]:
    import yaml

    blocks: list[dict[str, str]] = yaml.safe_load(rules)["limits"]
    return blocks


@pytest.mark.parametrize("memory", ["8k", "10m", "8192", "16M"])
def test_memory_is_a_size_of_nginx(tmp_path: Path, memory: str) -> None:
    done = exported_with_memory(tmp_path, memory)
    assert (done.exit_code, done.stderr) == (0, "")
    assert f"lua_shared_dict diana_counters {memory};" in (
        tmp_path / "out" / "diana.conf"
    ).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "memory",
    ["1m; lua_code_cache off", "lots", "-5", "", "0", "8191", "7k", "1g", "1.5m", "10 m", "10m\n", "٣m", "9" * 20],
)  # fmt: skip
def test_memory_that_nginx_would_refuse_is_refused(tmp_path: Path, memory: str) -> None:
    done = exported_with_memory(tmp_path, memory)
    assert done.exit_code == 2
    assert "must be a size of nginx" in done.stderr
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="must be a size of nginx"):
        export_nginx(load_rules(tmp_path / "diana.yaml"), None, tmp_path / "out", memory)


def exported_with_memory(folder: Path, memory: str) -> Result:
    file = folder / "diana.yaml"
    file.write_text("url: /\nrules: [{unit: second, rpu: 10}]\n", encoding="utf-8")
    line = ["export", "nginx", str(file), "-o", str(folder / "out"), "--memory", memory]
    return CliRunner().invoke(diana, line)
