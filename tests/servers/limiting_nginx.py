"""nginx with the Lua that `diana export nginx` writes, before a location that answers by itself."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from diana.nginx.exporter import export_nginx
from diana.rules.loading import load_rules
from tests.servers.nginx import EXITED, PROGRAM, STARTED
from tests.servers.ports import HOST
from tests.servers.process import Process
from tests.servers.waiting import until

MODULES = Path("/usr/share/nginx/modules")

_CONFIGURATION = """
{modules}
user root;
daemon off;
worker_processes {workers};
pid {folder}/nginx.pid;
error_log stderr notice;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  client_max_body_size 64m; client_body_buffer_size 64m;
  include {folder}/diana/diana.conf;
  {http}
  server {{
    listen {host}:{port};
    keepalive_requests 1000000;
    merge_slashes off;
    location = /-/explain {{ content_by_lua_file {explain}; }}
    {server}
    location / {{ include {folder}/diana/limit.conf; content_by_lua_block {{ ngx.print("passed") }} }}
  }}
}}
"""


class LimitingNginx(Process):
    """`/-/explain` tells what would be charged for the requests in its body, and counts nothing."""

    has_workers = True

    def __init__(
        self,
        rules: str,
        store: str | None = None,
        workers: int = 1,
        http: str = "",
        server: str = "",
    ) -> None:
        self._rules, self._store, self._workers = rules, store, workers
        self._http, self._server = http, server
        super().__init__()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def exported(self) -> Path:
        return self.folder / "diana"

    def export(self, rules: str) -> None:
        file = self.folder / "diana.yaml"
        file.write_text(rules, encoding="utf-8")
        policy = load_rules(file)
        export_nginx(policy, self._store or policy.settings.store, self.exported)

    def reload(self) -> None:
        """Other workers take over; those of before accept connections until they have exited."""
        started, exited = self._started(), self._exited()
        os.kill(self.pid, signal.SIGHUP)
        until(lambda: self._started() >= started + self._workers, "other workers start")
        until(lambda: self._exited() >= exited + self._workers, "the workers of before exit")

    def _started(self) -> int:
        return self._log.read_bytes().count(STARTED)

    def _exited(self) -> int:
        return self._log.read_bytes().count(EXITED)

    def _is_ready(self) -> bool:
        return self._started() >= self._workers

    def _command(self, port: int) -> list[str]:
        self.export(self._rules)
        modules = [
            f"load_module {MODULES / name};"
            for name in ("ndk_http_module.so", "ngx_http_lua_module.so")
        ]
        configuration = self.folder / "nginx.conf"
        configuration.write_text(
            _CONFIGURATION.format(
                modules="\n".join(modules),
                folder=self.folder,
                host=HOST,
                port=port,
                workers=self._workers,
                explain=Path(__file__).with_name("explain.lua"),
                http=self._http,
                server=self._server,
            )
        )
        return [PROGRAM, "-p", str(self.folder), "-c", str(configuration)]
