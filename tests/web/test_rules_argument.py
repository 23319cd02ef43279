"""What is given to a middleware: rules as a file, a mapping or a Policy; and what is wrong, with what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

from diana import ConfigError
from diana.asgi import RateLimitMiddleware as Asgi
from diana.testing import FakeClock
from diana.wsgi import RateLimitMiddleware as Wsgi
from tests.web import django_site  # noqa: F401  # sets Django up
from tests.web.calls import ask, ask_wsgi, hello
from tests.web.test_routes import on_django

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


def test_an_absolute_path_needs_no_advice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        Wsgi(wsgi_hello, tmp_path / "other.yaml")
    assert str(error.value) == f"{tmp_path}/other.yaml: cannot be read: No such file or directory"


@pytest.mark.filterwarnings("ignore:Using `httpx` with")
@pytest.mark.filterwarnings("ignore:The anyio.abc.BlockingPortal alias:DeprecationWarning")
@pytest.mark.parametrize("rules", ["nosuch.yaml", "100/minute"])
@pytest.mark.parametrize("kind", [FastAPI, Starlette])
def test_a_test_client_fails_at_once(kind: Any, rules: str) -> None:
    """It waits for the exception behind `lifespan.startup.failed`."""
    from starlette.testclient import TestClient

    app = kind()
    app.add_middleware(Asgi, rules=rules)
    with pytest.raises(ConfigError, match="rules"), TestClient(app):
        raise AssertionError("it has started")
