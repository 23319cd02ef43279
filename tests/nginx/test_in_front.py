"""The configuration that `docs/howto/nginx-in-front.md` shows, as it stands there."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from diana.nginx.exporter import export_nginx
from diana.rules.loading import load_rules
from tests.project.pages import DOCS
from tests.servers.limiting_nginx import MODULES
from tests.servers.nginx import PROGRAM
from tests.servers.ports import HOST
from tests.servers.process import Process
from tests.servers.server import Server

PAGE = (DOCS / "howto" / "nginx-in-front.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


class Shop(BaseHTTPRequestHandler):
    """Counts its orders."""

    orders = 0
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        type(self).orders += 1
        self.send_response(200)
        self.send_header("Content-Length", "7")
        self.end_headers()
        self.wfile.write(b"ordered")

    def log_message(self, *_: object) -> None:
        pass


class NginxOfThePage(Process):
    ready = b"start worker process"
    has_workers = True

    def __init__(self, store: str, shop: int) -> None:
        self._store, self._shop = store, shop
        super().__init__()

    def _command(self, port: int) -> list[str]:
        rules = self.folder / "edge.yaml"
        # A day, so that the clock has no say in what passes; and nothing depends on how fast this machine is.
        rules.write_text(
            re.sub(r"unit: (second|10s)", "unit: day", block("yaml"))
            .replace("redis://localhost:6379", self._store)
            .replace("namespace: shop\n", "namespace: shop\nstore_budget: 10s\n")
            .replace(", drop: random", "")
        )
        exported = self.folder / "diana"
        policy = load_rules(rules)
        export_nginx(policy, policy.settings.store, exported)
        temporary = "\n".join(
            f"{kind}_temp_path {self.folder}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        shown = (
            block("nginx")
            .replace("/etc/nginx/diana", str(exported))
            .replace("listen 80;", f"listen {HOST}:{port};")
            .replace("127.0.0.1:8000", f"{HOST}:{self._shop}")
            .replace("http {", f"http {{\n{temporary}\naccess_log off;")
        )
        modules = "".join(
            f"load_module {MODULES / name};\n"
            for name in ("ndk_http_module.so", "ngx_http_lua_module.so")
        )
        configuration = self.folder / "nginx.conf"
        configuration.write_text(
            f"{modules}user root; daemon off; worker_processes 2; pid {self.folder}/nginx.pid;\n"
            f"error_log stderr notice;\nevents {{ }}\n{shown}"
        )
        return [PROGRAM, "-p", str(self.folder), "-c", str(configuration)]


@pytest.fixture
def shop() -> Iterator[int]:
    server = ThreadingHTTPServer((HOST, 0), Shop)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_flash_sale_behind_the_shown_configuration(redis7: Server, shop: int) -> None:
    redis7.ask("FLUSHALL")
    Shop.orders = 0
    rules = Path("edge.yaml").name
    with NginxOfThePage(redis7.url, shop) as nginx, httpx.Client(timeout=60) as client:

        def order(user: str | None, sku: int) -> httpx.Response:
            headers = {} if user is None else {"X-User-Id": user}
            url = f"http://{HOST}:{nginx.port}/flash/order?sku_id={sku}"
            return client.post(url, headers=headers)

        script = [order("script", 7) for _ in range(4)]
        assert [reply.status_code for reply in script] == [200, 200, 429, 429], rules
        assert script[2].text == "So many want it! Please try again in a moment."
        assert "customer" in script[2].headers["RateLimit"]
        assert order(None, 7).status_code == 429
        # All come from one address, which may order 20 times.
        others = [order(f"customer {n}", 7).status_code for n in range(25)]
        assert others.count(200) == 18
        assert order("late", 7).headers["RateLimit"].startswith('"address"')
        assert Shop.orders == 20
        # What a product has sold is the store's to know, whichever nginx sold it.
        assert [
            key for key in redis7.ask("KEYS", "shop:product*") if b"|=7" in key or "|=7" in str(key)
        ]
