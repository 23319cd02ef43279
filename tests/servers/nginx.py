"""nginx, with locations of the test's own."""

from __future__ import annotations

from collections.abc import Mapping

from tests.servers.ports import HOST
from tests.servers.process import Process

PROGRAM = "/usr/sbin/nginx"

_CONFIGURATION = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr notice;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{
    listen {host}:{port};
    keepalive_requests 100000;
    merge_slashes {merge_slashes};
    {locations}
    location / {{ return 404; }}
  }}
}}
"""


STARTED = b"start worker process "
"""It says so of each, once it is there; before the first it says `start worker processes`."""
EXITED = b" exited with code "
"""It logs so of each worker."""


class Nginx(Process):
    """Each location answers with `reached` and its name."""

    ready = STARTED
    has_workers = True

    def __init__(self, locations: Mapping[str, str], merge_slashes: bool = True) -> None:
        self._locations = "\n".join(
            f"location {pattern} {{ return 200 'reached {name}'; }}"
            for name, pattern in locations.items()
        )
        self._merge_slashes = "on" if merge_slashes else "off"
        super().__init__()

    def _command(self, port: int) -> list[str]:
        configuration = self.folder / "nginx.conf"
        configuration.write_text(
            _CONFIGURATION.format(
                folder=self.folder,
                host=HOST,
                port=port,
                locations=self._locations,
                merge_slashes=self._merge_slashes,
            )
        )
        return [PROGRAM, "-p", str(self.folder), "-c", str(configuration)]


_AT_ONCE = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr notice;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  limit_conn_zone $binary_remote_addr zone=addresses:1m;
  server {{
    listen {host}:{port};
    location / {{
      limit_conn addresses {most};
      limit_conn_status 503;
      proxy_pass http://{host}:{upstream};
    }}
  }}
}}
"""


class NginxAtOnce(Process):
    """Before an upstream, with `limit_conn`: so many requests of one address at once."""

    ready = STARTED
    has_workers = True

    def __init__(self, upstream: int, most: int) -> None:
        self._upstream = upstream
        self._most = most
        super().__init__()

    def _command(self, port: int) -> list[str]:
        configuration = self.folder / "nginx.conf"
        configuration.write_text(
            _AT_ONCE.format(
                folder=self.folder, host=HOST, port=port, upstream=self._upstream, most=self._most
            )
        )
        return [PROGRAM, "-p", str(self.folder), "-c", str(configuration)]
