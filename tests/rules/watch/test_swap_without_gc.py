"""The collector and the switch interval are the application's; where Diana may set them it puts them back. What is replaced is freed."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from diana import Guard
from diana.rules.backends.atomic_file import write_atomically
from diana.rules.document.yaml_tree import free_gradually
from diana.rules.loading import rules_from_bytes
from diana.rules.watch import swap_without_gc as low_impact_module
from diana.rules.watch.swap_without_gc import low_impact, may_tune_process
from tests.rules.documents import document
from tests.servers.waiting import until


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    interval, collecting = sys.getswitchinterval(), gc.isenabled()
    yield
    assert (sys.getswitchinterval(), gc.isenabled()) == (interval, collecting)


@pytest.fixture
def own_process() -> Iterator[None]:
    may_tune_process()
    yield
    low_impact_module._impact.allowed = False


def test_a_library_leaves_the_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: list[str] = []
    names = [(gc, name) for name in ("disable", "enable", "freeze", "unfreeze", "collect")]
    for module, name in [*names, (sys, "setswitchinterval")]:
        monkeypatch.setattr(module, name, lambda *_, name=name: touched.append(name))
    monkeypatch.setattr("diana.rules.backends.file.POLL_SECONDS", 0.05)
    file = tmp_path / "rules.yaml"
    file.write_bytes(document(1))
    guard = Guard.from_file(file)
    write_atomically(file, document(2))
    until(lambda: guard.policy.rules[0].rpu == 2, "the new rules hold")
    guard.close()
    assert touched == []


@pytest.mark.usefixtures("own_process")
def test_the_collector_rests_and_goes_on() -> None:
    with low_impact():
        assert not gc.isenabled()
        assert sys.getswitchinterval() < 0.001
    with pytest.raises(ZeroDivisionError), low_impact():
        raise ZeroDivisionError


@pytest.mark.usefixtures("own_process")
def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with low_impact():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.usefixtures("own_process")
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


@pytest.mark.usefixtures("own_process")
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


@pytest.mark.usefixtures("own_process")
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
