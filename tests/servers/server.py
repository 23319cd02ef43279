"""One server: empty, without a disk, on a loopback port of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers.certificates import Certificates
from tests.servers.ports import HOST
from tests.servers.process import Process

_NEVER = Retry(NoBackoff(), 0)


class Server(Process):
    """A running Redis or Valkey.

    `arguments` are the program's own, `environment` is added to ours. With certificates it speaks TLS and nothing else.
    Of `ports` the first that is still free is taken.
    """

    ready = b"Ready to accept connections"

    def __init__(
        self,
        program: str,
        *arguments: str,
        ports: Iterable[int] | None = None,
        environment: Mapping[str, str] | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self.program = program
        self.arguments = arguments
        self.certificates = certificates
        self._clients: list[redis.Redis] = []
        super().__init__(ports, environment)
        self._side: Any = self.client(protocol=3)

    @property
    def url(self) -> str:
        return f"{'rediss' if self.certificates else 'redis'}://{HOST}:{self.port}"

    @property
    def socket(self) -> Path:
        """It listens here too."""
        return self.folder / "server.sock"

    @property
    def unix_url(self) -> str:
        return f"unix://{self.socket}"

    def client(self, **options: Any) -> redis.Redis:
        """A client that tries once and waits at most five seconds; closed when the server is stopped."""
        tls = self.certificates.options() if self.certificates else {}
        settings = {"socket_timeout": 5, "retry": _NEVER, **tls, **options}
        client = redis.Redis(host=HOST, port=self.port, **settings)
        self._clients.append(client)
        return client

    def ask(self, *words: Any) -> Any:
        """Send one command and give back the bare answer; a look from the side."""
        return self._side.execute_command(*words)

    def restart(self) -> None:
        """Start it again on the same port: empty, but with its folder, so that a node remembers its cluster."""
        self._side.close()
        super().restart()

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        super().stop()

    def _command(self, port: int) -> list[str]:
        # The socket's path is relative: a long one would not fit into the address of a socket.
        command = [self.program, "--bind", HOST, "--unixsocket", "server.sock"]
        command += ["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]
        if self.certificates:
            command += ["--port", "0", "--tls-port", str(port), *self.certificates.arguments()]
        else:
            command += ["--port", str(port)]
        return [*command, *self.arguments]
