"""If a process forks while a thread imports a module, the child inherits the module's import lock, held for ever.

So background threads import nothing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules.documents import local_file
from tests.servers.etcd import Etcd
from tests.servers.server import Server
from tests.servers.web import WebServer

SCRIPT = """
import sys, threading

imported = []

def hook(event, arguments):
    # A plug-in may be imported by any thread: a fork waits for that.
    if event == "import" and not plugins.importing._is_owned():
        imported.append((threading.current_thread().name, arguments[0]))

from diana.runtime import entry_points as plugins
sys.addaudithook(hook)
from diana import Guard
from tests.servers.waiting import until
from tests.rules.documents import ANY

with_remote = Guard.from_file(sys.argv[1], sys.argv[2])
until(lambda: with_remote.check(ANY).decisions[0].limit == 7, "the remote rules are in force")
until(lambda: not with_remote.check(ANY).decisions[0].degraded, "the store decides")
with_remote.close()
print(*(found for found in imported if found[0].startswith("diana-")), sep="\\n")
"""
REMOTE = b"limits: [{url: /, rules: [{name: all, unit: hour, rpu: 7, scope: global}]}]"


def run(file: Path, store: str) -> str:
    command = [sys.executable, "-c", SCRIPT, str(file), store]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("kind", ["http", "etcd", "redis"])
def test_background_threads_import_nothing(kind: str, redis7: Server, tmp_path: Path) -> None:
    store = f"redis://localhost:{redis7.port}?budget=5s"
    with WebServer(REMOTE) as web, Etcd() as etcd:
        etcd.put("/rules", REMOTE)
        redis7.ask("SET", "diana:rules", REMOTE)
        urls = {
            "http": web.url.replace("127.0.0.1", "localhost"),
            "etcd": etcd.url("/rules").replace("127.0.0.1", "localhost"),
            "redis": f"redis://localhost:{redis7.port}/0?key=diana:rules",
        }
        file = local_file(tmp_path, urls[kind])
        assert run(file, store).split("\n") == ["", ""]
