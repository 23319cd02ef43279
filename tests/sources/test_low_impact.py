"""What is set for all threads while rules are read is put back, and what is replaced is freed at once."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Iterator
from threading import Thread

import pytest

from diana.sources.document.yaml_tree import free_gradually
from diana.sources.following.low_impact import low_impact
from diana.sources.rules import rules_from_bytes
from tests.sources.documents import document


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    interval, collecting = sys.getswitchinterval(), gc.isenabled()
    yield
    assert (sys.getswitchinterval(), gc.isenabled()) == (interval, collecting)


def test_the_collector_rests_and_goes_on() -> None:
    with low_impact():
        assert not gc.isenabled()
        assert sys.getswitchinterval() < 0.001
    with pytest.raises(ZeroDivisionError), low_impact():
        raise ZeroDivisionError


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with low_impact():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_somebody_has_frozen_stays_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with low_impact():
            pass
        # Some of it may be freed meanwhile, by whatever else runs here; nothing is added, and it is not thawed.
        assert frozen / 2 < gc.get_freeze_count() <= frozen
    finally:
        gc.unfreeze()


def test_several_threads_put_back_what_was() -> None:
    def work() -> None:
        for _ in range(50):
            with low_impact():
                rules_from_bytes(document(1))

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_child_forked_meanwhile_has_its_collector() -> None:
    with low_impact():
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_policy_that_is_replaced_needs_no_collector() -> None:
    gc.disable()
    try:
        policy = rules_from_bytes(document(1))
        gone = weakref.ref(policy)
        del policy
        assert gone() is None
    finally:
        gc.enable()


def test_letting_go_leaves_nothing() -> None:
    things: list[object] = [object(), object()]
    free_gradually(things)
    assert things == []
