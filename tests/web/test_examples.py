"""The examples do what they say, on the servers they name."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.servers.waiting import until
from tests.web.conftest import Start


def statuses(
    client: httpx.Client, method: str, path: str, times: int, **request: object
) -> list[int]:
    return [client.request(method, path, **request).status_code for _ in range(times)]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def shop(start: Start) -> Iterator[httpx.Client]:
    port = start("-m", "uvicorn", "fastapi_app:app", "--port={port}")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        yield client


def test_the_flash_sale(shop: httpx.Client) -> None:
    order = "/flash/order?sku_id=7"
    ann = {"headers": {"X-User-Id": "ann"}}
    assert statuses(shop, "POST", order, 3, **ann) == [200, 200, 429]
    denied = shop.post(order, headers={"X-User-Id": "ann", "Accept": "text/html"})
    assert denied.text.startswith("<!doctype html><title>In a moment</title>")
    assert 1 <= int(denied.headers["Retry-After"]) <= 11
    assert statuses(shop, "POST", order, 1, headers={"X-User-Id": "bob"}) == [200]
    assert statuses(shop, "POST", order, 1) == [429]  # nobody
    assert statuses(shop, "GET", order, 9) == [405] * 9  # other methods are free


def test_routes_with_limits_of_their_own(shop: httpx.Client) -> None:
    key = {"headers": {"X-Api-Key": "k1"}}
    assert statuses(shop, "GET", "/catalogue/export", 3, **key) == [200, 200, 429]
    assert statuses(shop, "GET", "/catalogue/healthz", 20) == [200] * 20
    assert statuses(shop, "GET", "/report", 4, headers={"X-Tenant": "a"}) == [200] * 3 + [429]
    denied = shop.get("/report", headers={"X-Tenant": "a"})
    assert denied.headers["RateLimit"].startswith('"3/minute by ip + header X-Tenant";r=0;')
    assert denied.text == "So many want it! Please try again in a moment."  # the file's words
    # Five a second; a slow machine asks for longer until it has asked for more than that.
    until(lambda: 429 in statuses(shop, "GET", "/catalogue/search", 10), "it is limited")


LOGINS = {
    "Flask on gunicorn": ["-m", "gunicorn", "flask_app:app", "--bind=127.0.0.1:{port}"],
    "Flask's own": ["-m", "flask", "--app", "flask_app", "run", "--port={port}"],
    "Django on gunicorn": ["-m", "gunicorn", "django_app:application", "--bind=127.0.0.1:{port}"],
    "Django on uvicorn": ["-m", "uvicorn", "django_app:asgi", "--port={port}"],
    "Django's own": ["django_app.py", "runserver", "127.0.0.1:{port}", "--noreload"],
}


@pytest.mark.parametrize("server", LOGINS)
def test_the_login(server: str, start: Start) -> None:
    port = start(*LOGINS[server])
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        wrong = {"data": {"name": "Alice ", "password": "guess"}}
        assert statuses(client, "POST", "/login", 4, **wrong) == [403] * 4
        right = client.post("/login", data={"name": "alice", "password": "wonderland"})
        assert (right.status_code, right.text) == (200, "welcome")
        assert 'logins by name";r=0' in right.headers["RateLimit"]
        assert statuses(client, "POST", "/%6Cogin", 1, **wrong) == [429]
        names = [{"name": f"user {number}", "password": "guess"} for number in range(20)]
        tried = [client.post("/login", data=name).status_code for name in names]
        assert tried == [403] * 15 + [429] * 5  # twenty by address, five of them spent on alice
        large = {"data": {"name": "x" * 20_000}}
        assert statuses(client, "POST", "/login", 1, **large) == [429]
        assert client.get("/").text.startswith("hello")
