"""A server as a process: on a loopback port of its own, in a folder of its own, gone when we are."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from shutil import rmtree, which
from tempfile import mkdtemp
from types import TracebackType
from typing import Self

from tests.servers.logs import LOGS
from tests.servers.ports import free_ports
from tests.servers.waiting import until
from tests.shake.processes import descendants_of, send

# The kernel kills the server when we die, however we die. By this program and not by `preexec_fn`, which may deadlock, and
# of which newer Pythons warn, while other threads run. A server dies with the *thread* that started it: start it in the main one.
_DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL"] if which("setpriv") else []

START_SECONDS = 60.0
"""A Java machine on a busy computer takes its time."""


class Process:
    """Of `ports` the first that is still free is taken; `environment` is added to ours."""

    ready = b""
    """It listens, in its own words."""
    taken = "Address already in use"
    """It cannot, since somebody else does."""
    has_workers = False
    """Processes of its own, that would outlive it."""

    def __init__(
        self, ports: Iterable[int] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.environment = {**os.environ, **(environment or {})}
        self.folder = Path(mkdtemp(prefix="diana-"))
        self._frozen = False
        try:
            self.port = self._start(free_ports() if ports is None else ports)
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
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """What it said since it was started last."""
        return self._log.read_text(errors="replace")

    def freeze(self) -> None:
        """Stop it in the middle of what it does. The kernel still accepts connections for it."""
        if not self._frozen:
            self._frozen_mark.touch()
            os.kill(self.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, self.pid, os.WSTOPPED)
            self._frozen = True

    def thaw(self) -> None:
        if self._frozen:
            self._frozen_mark.unlink()
            os.kill(self.pid, signal.SIGCONT)
            os.waitid(os.P_PID, self.pid, os.WCONTINUED)
            self._frozen = False

    def kill(self) -> None:
        """Kill it as a lost machine dies: at once, frozen or not, with nothing saved. And its workers, which would keep the port."""
        # Not of one that is dead already: its number may be another's by now.
        below = descendants_of(self.pid) if self.has_workers and self.alive else []
        self._process.kill()
        self._process.wait()
        for worker in below:
            send(worker, signal.SIGKILL)
        self._frozen_mark.unlink(missing_ok=True)
        self._frozen = False

    def restart(self) -> None:
        """Start it again on the same port, with its folder and what it kept there."""
        self.kill()
        self._start([self.port])

    def stop(self) -> None:
        if hasattr(self, "_process"):
            self.kill()
        LOGS.close(self._log)
        rmtree(self.folder, ignore_errors=True)

    def _start(self, ports: Iterable[int]) -> int:
        for port in ports:
            if self._starts_on(port):
                return port
        raise OSError(f"{self._program} does not start: port {port} is taken. It says:\n{self.log}")

    def _starts_on(self, port: int) -> bool:
        command = [*_DIES_WITH_US, *self._command(port)]
        self._program = Path(command[len(_DIES_WITH_US)]).name
        LOGS.open(f"{self._program} on port {port}", self._log)
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
        try:
            until(
                lambda: self._is_ready() or not self.alive,
                f"{self._program} listens on port {port}",
                START_SECONDS,
            )
        except TimeoutError as late:
            raise RuntimeError(f"{late}. It says:\n{self.log}") from None
        if self._is_ready():
            return True
        if self.taken in self.log:
            return False
        raise RuntimeError(f"{command} does not start. It says:\n{self.log}")

    def _is_ready(self) -> bool:
        return self.ready in self._log.read_bytes()

    def _command(self, port: int) -> list[str]:
        raise NotImplementedError

    @property
    def _frozen_mark(self) -> Path:
        """There while it is frozen on purpose: `make shake`, which stops and wakes servers at random, lets such a one sleep."""
        return self.folder / "frozen"

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"
