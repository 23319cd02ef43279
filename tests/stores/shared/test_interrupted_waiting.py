"""A signal's handler may raise while a process waits for the lock of a zone: it keeps neither the lock nor the turnstile."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from diana.stores.zone.python import zone_recovery as zone_lock
from diana.stores.zone.python.python_zone import PythonZone
from diana.stores.zone.python.zone_layout import Layout
from diana.stores.zone.python.zone_recovery import ZoneLock
from diana.stores.zone.zone_file import open_zone_file
from diana.stores.zone.zone_size import SMALLEST_SIZE
from tests.stores.shared.zones import zone_name


class Struck(Exception):
    pass


def lockf_struck_after(calls: int) -> Callable[..., None]:
    """The interpreter looks for signals behind each call: so the lock is taken or given up, and then comes the exception."""
    numbers = count(1)

    def lockf(*arguments: Any) -> None:
        fcntl.lockf(*arguments)
        if next(numbers) == calls:
            raise Struck

    return lockf


def is_free_for_others(descriptor: int) -> bool:
    child = os.fork()
    if not child:
        code = 1
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 2)
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_struck_behind_any_call_it_holds_nothing(
    calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zone_name() as name:
        file = open_zone_file(name, "python", SMALLEST_SIZE, PythonZone.lay_out)
        monkeypatch.setattr(zone_lock, "lockf", lockf_struck_after(calls))
        lock = ZoneLock(Layout(file.mapping), file.descriptor)
        with pytest.raises(Struck):
            next(lock.waited)
        assert is_free_for_others(file.descriptor)


def test_what_was_left_locked_nevertheless_is_given_up_before_all_wait_for_each_other() -> None:
    with zone_name() as name:
        file = open_zone_file(name, "python", SMALLEST_SIZE, PythonZone.lay_out)
        lock = ZoneLock(Layout(file.mapping), file.descriptor)
        fcntl.lockf(file.descriptor, fcntl.LOCK_EX, 1)
        assert lock.is_busy(OSError(errno.EDEADLK, "one waits for the other"))
        assert is_free_for_others(file.descriptor)
