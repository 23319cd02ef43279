"""One of several workers of a gateway, as a program: `python -m diana.gateway.worker OPTIONS SOCKET READY LIFE`.

The options are JSON, the others descriptors that it inherits from its supervisor.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading

from diana.core.errors import ConfigError, SourceError, StoreError
from diana.gateway.app import GatewayOptions, run_worker

MOST_AT_ONCE = 4_096
"""Bytes that a pipe takes whole: lines of several workers do not mix."""


class WholeLines:
    """A stream for lines that other processes write beside."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, text: str) -> None:
        some = b""
        for line in text.encode("utf-8", "replace").splitlines(keepends=True):
            if len(some) + len(line) > MOST_AT_ONCE:
                self._write(some)
                some = b""
            some += line
        self._write(some)

    def flush(self) -> None:
        """Nothing waits."""

    def _write(self, lines: bytes) -> None:
        while lines:
            lines = lines[os.write(self._descriptor, lines) :]


def main(words: list[str]) -> int:
    options = GatewayOptions(**json.loads(words[0]))
    listening, ready, life = map(int, words[1:])
    threading.Thread(target=_end_with_parent, args=(life,), daemon=True).start()

    def announce() -> None:
        os.write(ready, b"1")
        os.close(ready)

    try:
        with socket.socket(fileno=listening) as inherited:
            run_worker(options, inherited, announce, WholeLines(1))
    except (ConfigError, SourceError) as error:
        print(f"Error: these rules cannot be used:\n{error}", file=sys.stderr)  # noqa: T201
        return 1
    except StoreError as error:
        print(f"Error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _end_with_parent(life: int) -> None:
    os.read(life, 1)  # until the supervisor's end is closed: it never writes
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    # The supervisor tells when to stop; Ctrl-C reaches the whole group, and a second one shall not be needed.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(main(sys.argv[1:]))
