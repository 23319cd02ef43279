"""Rules that change live reach nginx, too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.servers.limiting_nginx import LimitingNginx
from tests.servers.server import Server
from tests.servers.waiting import until

RULES = """
store: {store}
rules_from: {store}?key=rules-of-test
limits:
  - {{url: /, rules: [{{name: everyone, unit: day, rpu: 5, scope: global}}]}}
"""
OTHER = "limits: [{url: /, rules: [{name: everyone, unit: day, rpu: 7, scope: global}]}]"
UNFIT = "limits: [{url: /, rules: [{name: everyone, unit: day, rpu: 9, charge_on: [401]}]}]"


def diana(*words: str) -> list[str]:
    return [sys.executable, "-m", "diana", *words]


def run(*words: str) -> str:
    done = subprocess.run(diana(*words), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def publishing(file: Path) -> Iterator[Path]:
    said = file.with_suffix(".log")
    with said.open("wb") as log:
        process = subprocess.Popen(
            diana("publish-rules", str(file)),
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            until(lambda: "published" in said.read_text(), "rules are published", 60)
            yield said
        finally:
            process.terminate()
            process.wait()


def complains(nginx: LimitingNginx, times: int) -> bool:
    return nginx.log.count("the last good rules stay") == times


def all_obey(nginx: LimitingNginx, workers: int, said: Path) -> bool:
    """What was published second; each worker looks by itself."""
    published = re.findall(r"published version (\S+)", said.read_text())
    return len(published) == 2 and nginx.log.count(f"rules of version {published[1]}") == workers


def limit_of(nginx: LimitingNginx) -> str:
    return httpx.get(nginx.url, timeout=60).headers["RateLimit-Policy"]


@pytest.fixture
def file(redis7: Server, tmp_path: Path) -> Path:
    redis7.ask("FLUSHALL")
    file = tmp_path / "diana.yaml"
    file.write_text(RULES.format(store=redis7.url))
    return file


def push(rules: str, file: Path, redis7: Server) -> None:
    pushed = file.with_name("pushed.yaml")
    pushed.write_text(rules)
    run("push", "--yes", str(pushed), f"{redis7.url}?key=rules-of-test")


def test_a_rule_changed_by_push_is_obeyed_by_nginx(redis7: Server, file: Path) -> None:
    with LimitingNginx(file.read_text(), workers=2) as nginx, publishing(file) as said:
        assert limit_of(nginx) == '"everyone";q=5;w=86400'
        push(OTHER, file, redis7)
        pushed = time.monotonic()
        until(lambda: limit_of(nginx) == '"everyone";q=7;w=86400', "nginx obeys the new rules")
        print(f"obeyed after {time.monotonic() - pushed:.2f} s")
        until(lambda: all_obey(nginx, 2, said), "its other worker does, too")
        push(UNFIT, file, redis7)
        until(lambda: "are not published" in said.read_text(), "the publisher refuses")
        assert "charge_on" in said.read_text()
        assert limit_of(nginx) == '"everyone";q=7;w=86400'


def test_overrides_of_the_store_are_obeyed_by_nginx(redis7: Server, file: Path) -> None:
    file.write_text(
        f"store: {redis7.url}\nlimits: [{{url: /, rules: [{{name: each, actor: ip, unit: day, rpu: 5, scope: global}}]}}]"
    )
    with LimitingNginx(file.read_text(), workers=1) as nginx, publishing(file):
        assert limit_of(nginx) == '"each";q=5;w=86400'
        one = (redis7.url, "each", "127.0.0.1", "--rules", str(file))
        run("override", *one, "--rpu", "9")
        until(lambda: limit_of(nginx) == '"each";q=9;w=86400', "nginx obeys the override")
        run("override", *one, "--remove")
        until(lambda: limit_of(nginx) == '"each";q=5;w=86400', "nginx obeys the rule again")


def test_rules_come_back_after_a_flush(redis7: Server, file: Path) -> None:
    with publishing(file):
        redis7.ask("FLUSHALL")
        until(lambda: redis7.ask("KEYS", "diana:rules:nginx*"), "they are published again")


def test_rules_that_cannot_be_read_are_left_alone(redis7: Server, file: Path) -> None:
    run("publish-rules", "--once", str(file))
    with LimitingNginx(file.read_text(), workers=1) as nginx:
        (key,) = redis7.ask("KEYS", "diana:rules:nginx*")
        unfit = ("{", '{"format": 99}', '{"format": 1, "rules": [1]}', "")
        for times, odd in enumerate(unfit, 1):
            redis7.ask("HSET", key, "version", odd, "rules", odd)
            until(partial(complains, nginx, times), "nginx complains")
        assert limit_of(nginx) == '"everyone";q=5;w=86400'


def test_once_says_what_it_did(redis7: Server, file: Path) -> None:
    assert "published version" in run("publish-rules", "--once", str(file))
    assert "published already" in run("publish-rules", "--once", str(file))


def test_two_fleets_in_one_namespace_are_told_apart_by_where_their_rules_come_from(
    redis7: Server, file: Path
) -> None:
    run("publish-rules", "--once", str(file))
    file.write_text(file.read_text().replace("rules-of-test", "others"))
    run("publish-rules", "--once", str(file))
    assert len(redis7.ask("KEYS", "diana:rules:nginx*")) == 2


def test_without_a_store_there_is_nowhere_to_publish(tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(OTHER)
    done = subprocess.run(
        diana("publish-rules", str(file)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "--store" in done.stderr
