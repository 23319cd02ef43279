"""What the fuzzer finds it makes short, and prints as code that runs again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from diana.core.charge import Charges
from diana.core.decision import Decision
from tests.fuzz import replay
from tests.fuzz.back_ends import BackEnd, BackEnds
from tests.fuzz.model import Model
from tests.fuzz.real_time import PlayedOtherwise, play
from tests.fuzz.session import Failure, Session, history_of
from tests.fuzz.shrink import as_code

SEED = 1


class KeepsWhatIsRefunded(Model):
    def refund(self, charges: Charges, at: int, now: int | None = None) -> None:
        """A defect."""


class ChargesWhatIsDenied(Model):
    def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        """A defect: of several charges, those that pass are made though another is denied."""
        return [super(ChargesWhatIsDenied, self).decide([charge], now)[0] for charge in charges]


class ForgetsOtherKeys(Model):
    def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        """A defect."""
        decisions = super().decide(charges, now)
        kept = {(meter.id, key) for meter, key, _ in charges}
        self.states = {counter: one for counter, one in self.states.items() if counter in kept}
        return decisions


def compared_with(store: Model) -> BackEnds:
    return BackEnds(BackEnd("model", Model(), Model()), [BackEnd("wrong", store, store)])


def first_failure(store: Model) -> Failure:
    with asyncio.Runner() as runner:
        opened = Session(compared_with(store), runner)
        return next(filter(None, (opened.run(SEED, number) for number in range(200))))


@pytest.mark.parametrize("defect", [KeepsWhatIsRefunded, ChargesWhatIsDenied, ForgetsOtherKeys])
def test_a_defect_is_found_and_shown_in_a_few_steps(defect: type[Model]) -> None:
    failure = first_failure(defect())
    assert len(failure.history.steps) <= 4
    assert f"--seed {SEED} --history {failure.number}" in str(failure)
    assert "wrong" in str(failure)


def test_the_code_of_a_history_makes_it_again() -> None:
    names: dict[str, Any] = vars(replay)
    for number in range(10):
        history = history_of(SEED, number)
        assert eval(as_code(history), names) == history


def test_in_real_time_too_a_defect_is_found() -> None:
    histories = [history_of(SEED, number) for number in range(20)]
    with pytest.raises(PlayedOtherwise):
        play(histories, compared_with(ForgetsOtherKeys()))
