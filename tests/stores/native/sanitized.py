"""Run a module with the C part built with sanitizers: `python -m tests.stores.native.sanitized EXTENSION MODULE ARGUMENTS…`."""

from __future__ import annotations

import runpy
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from typing import Any


class Instead:
    """Finds diana._native somewhere else."""

    def __init__(self, extension: str) -> None:
        self._extension = extension

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        return spec_from_file_location(name, self._extension) if name == "diana._native" else None


def main(extension: str, module: str) -> None:
    sys.meta_path.insert(0, Instead(extension))
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
