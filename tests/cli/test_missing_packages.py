"""Without the optional packages every verb works, or is one line that names the extra to install."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from diana.cli.main import EXTRAS

RUN = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

BLOCKED = set(json.loads(sys.argv[1]))
sys.meta_path.insert(0, Blocked())

from click.testing import CliRunner
from diana.cli.main import diana

found = {}
for line in json.loads(sys.argv[2]):
    result = CliRunner().invoke(diana, line)
    unhandled = result.exc_info if not isinstance(result.exception, (SystemExit, type(None))) else None
    found[" ".join(line)] = [result.exit_code, result.output, repr(unhandled and unhandled[1])]
print(json.dumps(found))
"""

PLAIN = "url: /\nrules: [{name: addresses, actor: ip, unit: second, rpu: 10, scope: global}]\n"
SHED = "limits: []\nshed: default\n"
REDIS = "redis://127.0.0.1:1"
EXTRA_OF_LINE = {
    "check rules.yaml": None,
    "check --connect store.yaml": "redis",
    "explain rules.yaml GET /": None,
    "explain store.yaml GET /": "redis",
    "diff rules.yaml rules.yaml": None,
    "pull rules.yaml": None,
    "completion bash": None,
    "zone --help": None,
    "export nginx rules.yaml -o folder": None,
    f"export nginx rules.yaml -o folder --store {REDIS}": None,
    "import nginx nginx.conf": None,
    f"nodes {REDIS}": "redis",
    f"peek {REDIS} addresses 1.2.3.4": "redis",
    f"reset {REDIS} addresses 1.2.3.4": "redis",
    f"unblock {REDIS} addresses 1.2.3.4": "redis",
    f"override {REDIS} addresses 1.2.3.4 --rpu 5": "redis",
    f"publish-rules rules.yaml --once --store {REDIS}": "redis",
    f"pull {REDIS}": "redis",
    f"push rules.yaml {REDIS} --yes": "redis",
    f"rollback {REDIS} --yes": "redis",
    f"diff rules.yaml {REDIS}": "redis",
    f"watch {REDIS} --count 1": "redis",
    "pull zookeeper://127.0.0.1:1/rules": "zookeeper",
    "watch zookeeper://127.0.0.1:1/rules --count 1": "zookeeper",
    "gateway --rules rules.yaml --sample --bind 127.0.0.1:0": "gateway",
    "demo --rules store.yaml --port 0": "redis",
    "shed shed.yaml": "shed",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    folder: Path = tmp_path_factory.mktemp("verbs")
    (folder / "rules.yaml").write_text(PLAIN)
    (folder / "store.yaml").write_text(
        f"store: {REDIS}\nlimits: [{{{PLAIN.replace(chr(10), ', ')}}}]\n"
    )
    (folder / "shed.yaml").write_text(SHED)
    (folder / "nginx.conf").write_text(
        "limit_req_zone $host zone=a:1m rate=1r/s; limit_req zone=a;"
    )
    lines = [line.split() for line in EXTRA_OF_LINE]
    ran = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(sorted(EXTRAS)), json.dumps(lines)],
        cwd=folder, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found: dict[str, tuple[int, str, str]] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize("line", EXTRA_OF_LINE)
def test_a_verb_works_or_names_the_extra(line: str, said: dict[str, tuple[int, str, str]]) -> None:
    code, output, unhandled = said[line]
    assert unhandled == "None", f"a traceback: {unhandled}"
    extra = EXTRA_OF_LINE[line]
    if extra is None:
        assert code == 0, output
    else:
        assert code == 1, output
        assert f"pip install 'diana-limiter[{extra}]'" in output


LIBRARY = """
import sys

sys.modules.update(dict.fromkeys(sys.argv[1:]))  # None: not installed

from diana import DianaError, Guard, Limiter, load_rules
from diana.testing import algorithm_laws, store_contract
from diana.stores.memory import MemoryStore
from diana.algorithms.fixed_window import window

RULES = {"url": "/", "rules": [{"unit": "minute", "rpu": 5}]}
SHED = {"limits": [RULES]}

for what, use in {
    "redis": lambda: Limiter("1/minute", store="redis://localhost", name="a"),
    "redis rules": lambda: Guard.from_file("redis://localhost/0"),
    "zookeeper": lambda: Guard.from_file("zookeeper://localhost:2181/rules"),
    "prometheus": lambda: Guard(load_rules(RULES), observers=["prometheus"]),
    "shed": lambda: load_rules({**SHED, "shed": "default"}),
    "redis_length": lambda: load_rules({**SHED, "shed": [{"factor": "redis_length"}]}),
    "testing": lambda: algorithm_laws(window),
    "testing of stores": lambda: store_contract(MemoryStore),
}.items():
    try:
        use()
    except DianaError as error:
        print(what, "|", error)
"""
EXTRA_OF_USE = {
    "redis": "redis", "redis rules": "redis", "zookeeper": "zookeeper", "prometheus": "prometheus", "shed": "shed",
    "redis_length": "redis", "testing": "testing", "testing of stores": "testing",
}  # fmt: skip


def test_the_library_names_the_extra_too() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LIBRARY, *sorted(EXTRAS), "hypothesis"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    said = dict(line.split(" | ") for line in ran.stdout.splitlines())
    for use, extra in EXTRA_OF_USE.items():
        assert f"pip install 'diana-limiter[{extra}]'" in said[use], said


def test_every_optional_package_has_an_extra() -> None:
    """So that none is missing in EXTRAS when an extra gains a package."""
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for package, extra in EXTRAS.items():
        wanted = package.replace("_", "-")
        assert any(line.startswith(wanted) for line in extras[extra]), package
