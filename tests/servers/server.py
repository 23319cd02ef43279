"""One server: empty, without a disk, on a loopback port of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from shutil import rmtree, which
from tempfile import mkdtemp
from types import TracebackType
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers.certificates import Certificates
from tests.servers.ports import HOST, free_ports
from tests.servers.waiting import until

# The kernel kills the server when we die, however we die. By this program and not by `preexec_fn`, which may deadlock, and
# of which newer Pythons warn, while other threads run. A server dies with the *thread* that started it: start it in the main one.
_DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL"] if which("setpriv") else []
_NEVER = Retry(NoBackoff(), 0)


class Server:
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
        self.environment = {**os.environ, **(environment or {})}
        self.certificates = certificates
        self.folder = Path(mkdtemp(prefix="diana-"))
        self._clients: list[redis.Redis] = []
        self._frozen = False
        try:
            self.port = self._start(free_ports() if ports is None else ports)
            self._side: Any = self.client(protocol=3)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

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

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """What it said since it was started last."""
        return self._log.read_text(errors="replace")

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

    def freeze(self) -> None:
        """Stop it in the middle of what it does. The kernel still accepts connections for it."""
        if not self._frozen:
            os.kill(self.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, self.pid, os.WSTOPPED)
            self._frozen = True

    def thaw(self) -> None:
        if self._frozen:
            os.kill(self.pid, signal.SIGCONT)
            os.waitid(os.P_PID, self.pid, os.WCONTINUED)
            self._frozen = False

    def kill(self) -> None:
        """Kill it as a lost machine dies: at once, frozen or not, with nothing saved."""
        self._process.kill()
        self._process.wait()
        self._frozen = False

    def restart(self) -> None:
        """Start it again on the same port: empty, but with its folder, so that a node remembers its cluster."""
        self.kill()
        self._side.close()
        self._start([self.port])

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        if hasattr(self, "_process"):
            self.kill()
        rmtree(self.folder, ignore_errors=True)

    def _start(self, ports: Iterable[int]) -> int:
        for port in ports:
            if self._starts_on(port):
                return port
        raise OSError(f"the port is taken: {self.log}")

    def _starts_on(self, port: int) -> bool:
        command = [*_DIES_WITH_US, *self._command(port)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        # Its own word that it listens. An answer on the port could come from somebody who took it in between.
        until(lambda: self._is_ready() or not self.alive, f"{command} is ready")
        if self._is_ready():
            return True
        if "Address already in use" in self.log:
            return False
        raise RuntimeError(f"{command} does not start: {self.log}")

    def _is_ready(self) -> bool:
        return self.ready in self._log.read_bytes()

    def _command(self, port: int) -> list[str]:
        # The socket's path is relative: a long one would not fit into the address of a socket.
        command = [self.program, "--bind", HOST, "--unixsocket", "server.sock"]
        command += ["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]
        if self.certificates:
            command += ["--port", "0", "--tls-port", str(port), *self.certificates.arguments()]
        else:
            command += ["--port", str(port)]
        return [*command, *self.arguments]

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"
