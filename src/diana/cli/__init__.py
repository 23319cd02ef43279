"""The `diana` command: one file for each verb. It needs click: `pip install 'diana-limiter[cli]'`; without click the command reports that.

Shared by verbs:
main            all verbs under one name
output          text for people, JSON for programs
store_argument  which store a command uses
found_rule      a rule from a rules file, or as nodes have published it
store_admin     `peek`, `reset`, `unblock`, `override`: which counter in which store
key_status      `peek`: the numbers and the state of one client
redis_counters  counters in Redis
zone_counters   counters in a zone
rules_targets   `push`, `pull`, `diff`, `rollback`: rules in a backend
check_connect   `check --connect`
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
