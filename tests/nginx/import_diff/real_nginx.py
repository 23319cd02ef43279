"""nginx with a configuration, asked one request after the other."""

from __future__ import annotations

import select
import socket
from pathlib import Path

from tests.nginx.import_diff.configurations import STATUSES, Configuration
from tests.nginx.import_diff.requests import Asked
from tests.servers.nginx import PROGRAM
from tests.servers.ports import HOST, free_port
from tests.servers.process import Process

# One process, which needs no master: the whole start takes some hundredths of a second.
_CONFIGURATION = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr notice;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  root {folder}/none;
  keepalive_requests 100000;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{ listen {host}:{port}; return 204; }}
  include {tested};
}}
"""
_AT_ONCE = 3
"""Requests that are answered at once, by each of which the process has looked at all connections anew."""


class RealNginx(Process):
    """Its own port answers at once and counts nothing."""

    ready = b"getrlimit(RLIMIT_NOFILE)"

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._connections: dict[tuple[int, str], socket.socket] = {}
        self._held_back: list[socket.socket] = []
        self._ports: list[int] = []
        super().__init__()

    @property
    def tested(self) -> Path:
        """The configuration, for both sides."""
        return self.folder / "tested.conf"

    def allows(self, asked: Asked) -> bool:
        place = self._ports[asked.port], asked.peer
        connection = self._connections.get(place) or _connected(*place)
        self._connections[place] = connection
        connection.sendall(asked.message())
        if self._configuration.delays and not self._is_answered(connection):
            # It is let pass, some minutes from now.
            self._held_back.append(self._connections.pop(place))
            return True
        return _status(connection) not in STATUSES

    def stop(self) -> None:
        for connection in (*self._connections.values(), *self._held_back):
            connection.close()
        super().stop()

    def _is_answered(self, connection: socket.socket) -> bool:
        place = self.port, HOST
        at_once = self._connections.get(place) or _connected(*place)
        self._connections[place] = at_once
        for _ in range(_AT_ONCE):
            at_once.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            _status(at_once)
        return bool(select.select([connection], [], [], 0)[0])

    def _command(self, port: int) -> list[str]:
        self._ports = []
        while len(self._ports) < self._configuration.ports:
            other = free_port()
            if other != port and other not in self._ports:
                self._ports.append(other)
        self.tested.write_text(self._configuration.text(self._ports), encoding="utf-8")
        file = self.folder / "nginx.conf"
        file.write_text(
            _CONFIGURATION.format(folder=self.folder, host=HOST, port=port, tested=self.tested)
        )
        return [PROGRAM, "-p", str(self.folder), "-c", str(file)]


def _connected(port: int, address: str) -> socket.socket:
    connection = socket.create_connection((HOST, port), timeout=30, source_address=(address, 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _status(connection: socket.socket) -> int:
    """Of one response, which is read to its end."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += _received(connection)
    head, _, body = received.partition(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    while len(body) < length:
        body += _received(connection)
    return int(head.split(b" ", 2)[1])


def _received(connection: socket.socket) -> bytes:
    received = connection.recv(65_536)
    if not received:
        raise ConnectionError("nginx has closed the connection")
    return received
