"""What is given to a middleware: rules as a file, a mapping or a Policy; and what is wrong, with what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

import diana.fastapi
import diana.flask
import diana.litestar
import diana.starlette
from diana import ConfigError
from diana.asgi import RateLimitMiddleware as Asgi
from diana.testing import FakeClock
from diana.wsgi import RateLimitMiddleware as Wsgi
from tests.middleware import django_site  # noqa: F401  # sets Django up
from tests.middleware.calls import ask, ask_wsgi, hello
from tests.middleware.test_routes import on_django

import diana.django  # isort: skip
import diana.rest_framework  # isort: skip

MAPPING: Any = {"url": "/", "rules": [{"name": "you", "actor": "ip", "unit": "minute", "rpu": 1}]}


def wsgi_hello(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b"hello"]


def test_rules_may_be_a_mapping() -> None:
    app = Asgi(hello, MAPPING, clock=FakeClock())
    assert [ask(app).status for _ in range(2)] == [200, 503]
    some = Wsgi(wsgi_hello, MAPPING, clock=FakeClock())
    assert [ask_wsgi(some).status for _ in range(2)] == [200, 503]
    asked = on_django("9/minute", MAPPING, {"clock": FakeClock()})
    assert [asked().status for _ in range(2)] == [200, 503]


def test_a_mapping_that_is_wrong_is_told_as_a_file_would_be() -> None:
    with pytest.raises(ConfigError, match="rpu"):
        Wsgi(wsgi_hello, {"url": "/", "rules": [{"unit": "minute", "rpu": "ten"}]})


def test_a_limit_is_no_rules() -> None:
    with pytest.raises(ConfigError) as error:
        Wsgi(wsgi_hello, "100/minute")
    assert str(error.value).startswith(
        "rules= must be a rules file, a mapping or a Policy (got '100/minute', a limit); write rules={"
    )


def test_a_relative_path_is_shown_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        Wsgi(wsgi_hello, "diana.yaml")
    said = str(error.value)
    assert said.startswith("diana.yaml: cannot be read: No such file or directory")
    assert str(tmp_path / "diana.yaml") in said
    assert "write rules=Path(__file__).with_name('diana.yaml')" in said
    with pytest.raises(ConfigError) as error:
        Wsgi(wsgi_hello, tmp_path / "other.yaml")
    assert str(error.value) == f"{tmp_path}/other.yaml: cannot be read: No such file or directory"


@pytest.mark.filterwarnings("ignore:Using `httpx` with")
@pytest.mark.parametrize("rules", ["nosuch.yaml", "100/minute"])
@pytest.mark.parametrize("kind", [FastAPI, Starlette])
def test_a_test_client_fails_at_once(kind: Any, rules: str) -> None:
    """It waits for the exception behind `lifespan.startup.failed`."""
    from starlette.testclient import TestClient

    app = kind()
    app.add_middleware(Asgi, rules=rules)
    with pytest.raises(ConfigError, match="rules"), TestClient(app):
        raise AssertionError("it has started")


def test_a_decorator_without_parentheses_is_told() -> None:
    def view(request: Any) -> None: ...

    modules: list[Any] = [
        diana.flask, diana.django, diana.starlette, diana.fastapi, diana.litestar, diana.rest_framework,
    ]  # fmt: skip
    for module in modules:
        with pytest.raises(ConfigError, match=r'needs a limit; write @rate_limit\("100/minute"\)'):
            module.rate_limit(view)


def test_a_dependency_without_depends_is_told() -> None:
    limit: Any = diana.fastapi.RateLimit("1/minute")
    with pytest.raises(ConfigError, match=r'write dependencies=\[Depends\(RateLimit\("10/minute'):
        FastAPI().get("/", dependencies=[limit])(lambda: "hello")
