from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from diana.core.drive import adrive, drive


def talk() -> Generator[str, int, int]:
    total = 0
    try:
        for word in ("one", "two"):
            total += yield word
    except KeyError:
        total += yield "three"
    return total


NUMBERS = {"one": 1, "three": 3}


def test_both_loops_do_the_same() -> None:
    async def look_up(word: str) -> int:
        return NUMBERS[word]

    assert drive(talk(), NUMBERS.__getitem__) == 4
    assert asyncio.run(adrive(talk(), look_up)) == 4


def test_an_error_that_the_talk_does_not_expect_is_raised() -> None:
    def fail(_: str) -> Any:
        raise OSError

    with pytest.raises(OSError, match=r"^$"):
        drive(talk(), fail)
