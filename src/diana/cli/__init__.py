"""The `diana` command: one file per verb.

Its library, click, comes with `pip install 'diana-limiter[cli]'`; without it the command says so.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress

CANNOT_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
"""Of an OSError that no verb has handled: the output cannot be written. A closed pipe (EPIPE) is handled by click: exit status 1."""


def main() -> None:
    try:
        from diana.cli.main import diana
    except ModuleNotFoundError as missing:
        if missing.name != "click":
            raise
        sys.exit("diana: the command line needs click; run pip install 'diana-limiter[cli]'")
    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        # A character that the output's encoding lacks becomes a question mark, not a traceback.
        sys.stdout.reconfigure(errors="replace")
    try:
        try:
            diana()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # when the interpreter does it, a failure is a traceback
    except OSError as error:
        if error.errno not in CANNOT_WRITE:
            raise
        _end_without_output(error)


def _end_without_output(error: OSError) -> None:
    # The interpreter flushes once more at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    with suppress(OSError):
        print(f"Error: cannot write the output: {error.strerror}", file=sys.stderr)  # noqa: T201
    sys.exit(1)
