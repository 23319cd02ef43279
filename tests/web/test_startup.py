"""A rules file that is wrong or missing: the server does not start, or says why at the first request."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware

from diana import ConfigError
from diana.asgi import RateLimitMiddleware
from tests.servers.ports import free_ports
from tests.web.calls import ask, ask_wsgi, hello, policy

ROOT = Path(__file__).parents[2]
WRONG = "url: /\nrules: [{unit: minute, rpu: many}]"
APP = """
from starlette.applications import Starlette

from diana.asgi import RateLimitMiddleware

app = Starlette()
app.add_middleware(RateLimitMiddleware, rules="{rules}")
"""
SETTINGS = """
SECRET_KEY = "for tests only"
INSTALLED_APPS = ["diana.django"]
MIDDLEWARE = ["diana.django.RateLimitMiddleware"]
DIANA_RULES = "{rules}"
"""


def run(folder: Path, *command: str) -> tuple[int, str]:
    """Python in a folder, until it ends."""
    paths = os.pathsep.join([str(ROOT / "src"), str(folder)])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONUTF8": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("missing.yaml", "missing.yaml: cannot be read"),
        ("wrong.yaml", "wrong.yaml:2:29: limits[0].rules[0].rpu: 'many' is no whole number"),
    ],
)
def test_uvicorn_does_not_start(tmp_path: Path, rules: str, said: str) -> None:
    (tmp_path / "wrong.yaml").write_text(WRONG)
    (tmp_path / "served.py").write_text(APP.format(rules=rules))
    port = next(iter(free_ports()))
    status, told = run(tmp_path, "-m", "uvicorn", "served:app", f"--port={port}")
    assert status != 0
    assert said.split(": ")[0] in told
    assert "Application startup failed" in told
    assert "Uvicorn running" not in told


async def started(app: Any) -> list[Any]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    with pytest.raises(ConfigError) as error:
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    assert str(error.value) == sent[0]["message"]
    return sent


def test_the_failure_of_the_start_has_the_words_of_the_error(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text(WRONG)
    wrong = str(tmp_path / "wrong.yaml")
    middleware = RateLimitMiddleware(hello, rules=wrong)
    lazy = Starlette(middleware=[Middleware(RateLimitMiddleware, rules=wrong)])
    for app in (middleware, lazy):
        (sent,) = asyncio.run(started(app))
        assert sent["type"] == "lifespan.startup.failed"
        with pytest.raises(ConfigError) as error:  # without lifespan
            ask(app)
        assert str(error.value) == sent["message"]
        assert "wrong.yaml:2" in sent["message"]


def test_what_is_wrong_in_code_fails_the_start_too() -> None:
    rules = policy("url: /\nrules: [{unit: minute, rpu: 1}]")
    for options in ({"account": "X-User"}, {"denied": 429}, {"store": "nowhere://"}):
        app: Any = Starlette(middleware=[Middleware(RateLimitMiddleware, rules=rules, **options)])
        (sent,) = asyncio.run(started(app))
        assert sent["type"] == "lifespan.startup.failed"


@pytest.mark.parametrize(
    ("rules", "said"), [("missing.yaml", "cannot be read"), ("wrong.yaml", "wrong.yaml:2")]
)
def test_manage_py_check_reports_it(tmp_path: Path, rules: str, said: str) -> None:
    (tmp_path / "wrong.yaml").write_text(WRONG)
    (tmp_path / "right.yaml").write_text("url: /\nrules: [{unit: minute, rpu: 9}]")
    # Without bytecode: the settings change within a second, and are as long as before.
    check = ("-B", "-m", "django", "check", "--settings=site_settings")
    (tmp_path / "site_settings.py").write_text(SETTINGS.format(rules=rules))
    status, told = run(tmp_path, *check)
    assert status == 1
    assert "(diana.E001)" in told
    assert said in told
    (tmp_path / "site_settings.py").write_text(SETTINGS.format(rules="right.yaml"))
    status, told = run(tmp_path, *check)
    assert status == 0, told
    more = 'DIANA_ACCOUNT = "nowhere.at_all"\n'
    (tmp_path / "site_settings.py").write_text(SETTINGS.format(rules="right.yaml") + more)
    status, told = run(tmp_path, *check)
    assert status == 1
    assert "(diana.E002)" in told
    (tmp_path / "site_settings.py").write_text(
        SETTINGS.format(rules=rules) + more + "DIANA_ENABLED = False\n"
    )
    assert run(tmp_path, *check)[0] == 0


def test_wsgi_fails_when_it_is_made() -> None:
    from diana.wsgi import RateLimitMiddleware as Wsgi

    def app(environ: Any, start_response: Any) -> list[bytes]:
        raise AssertionError

    with pytest.raises(ConfigError, match="cannot be read"):
        ask_wsgi(Wsgi(app, rules="missing.yaml"))
