"""The `diana` command: one file per verb.

Its library, click, comes with `pip install 'diana-limiter[cli]'`; without it the command says so.
"""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from diana.cli.main import diana
    except ModuleNotFoundError as missing:
        if missing.name != "click":
            raise
        sys.exit("diana: the command line needs click; run pip install 'diana-limiter[cli]'")
    diana()
