"""`served` under eventlet, patched and then forked: `python -m tests.processes.green PORT WORKERS`."""

# ruff: noqa: E402
from __future__ import annotations

import eventlet

eventlet.monkey_patch()

import os
import signal
import sys
from typing import Any

import eventlet.hubs
import eventlet.wsgi

from tests.processes import served

port, workers = int(sys.argv[1]), int(sys.argv[2])
listening = eventlet.listen(("127.0.0.1", port), backlog=128)
parent, children = os.getpid(), list[int]()


def end(*_: Any) -> None:
    for child in children:
        os.kill(child, signal.SIGKILL)
    os._exit(0)


def end_with_parent() -> None:
    while os.getppid() == parent:
        eventlet.sleep(0.2)
    os._exit(0)


for _ in range(workers):
    child = os.fork()
    if not child:
        eventlet.hubs.use_hub()  # the parent's is the parent's
        eventlet.spawn(end_with_parent)
        eventlet.wsgi.server(listening, served.wsgi, log_output=False)
        os._exit(0)
    children.append(child)
signal.signal(signal.SIGTERM, end)
print("listening", flush=True)
for child in children:
    os.waitpid(child, 0)
