"""Several servers at once, for programs that are no tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from tests.servers.server import Server


@contextmanager
def running(programs: Mapping[str, str]) -> Iterator[dict[str, Server]]:
    """By the same names; stopped at the end."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(Server(program)) for name, program in programs.items()}
