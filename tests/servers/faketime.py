"""A server whose wall clock we set while it runs."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.servers.programs import VALKEY_9
from tests.servers.server import Server


def library() -> str:
    for library in Path("/usr/lib").glob("*/faketime/libfaketime.so.1"):
        return str(library)
    raise RuntimeError("no libfaketime.so.1: install libfaketime")


class ServerInItsOwnTime(Server):
    """A server that libfaketime tells the time: Valkey 9 or Redis 6.2.

    Not Debian's Redis 7. Its jemalloc asks for the time while libfaketime is still being loaded, and both wait for each other.
    """

    def __init__(self, program: str = VALKEY_9, *arguments: str) -> None:
        self.ahead = 0.0
        self._clock_folder = TemporaryDirectory(prefix="diana-")
        self._set()
        environment = {
            "LD_PRELOAD": library(),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_NO_CACHE": "1",
            # As on a real machine: setting the wall clock does not touch the clock that measures how long something took.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        super().__init__(program, *arguments, environment=environment)

    def step(self, seconds: float) -> None:
        """Set the server's wall clock forward, or back. Steps add up."""
        self.ahead += seconds
        self._set()

    def kill(self) -> None:
        super().kill()
        # libfaketime leaves these behind when its process is killed, and trips over them when the pid comes round again.
        for left in Path("/dev/shm").glob(f"*faketime_*_{self.pid}"):
            left.unlink()

    def stop(self) -> None:
        super().stop()
        self._clock_folder.cleanup()

    def _set(self) -> None:
        # In one piece: the server reads it each time it wants to know the time.
        half_written = self._clock.with_suffix(".new")
        half_written.write_text(f"{self.ahead:+.6f}\n")
        half_written.replace(self._clock)

    @property
    def _clock(self) -> Path:
        return Path(self._clock_folder.name) / "clock"
