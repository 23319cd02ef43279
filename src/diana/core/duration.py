"""Durations as people spell them, as whole microseconds.

Nothing is guessed: `w`, `month` and a bare `s` are errors, because one library's `m` is a minute and another's a month.
"""

from __future__ import annotations

import re
from functools import lru_cache

from diana.core.errors import ConfigError, shown

SECOND_US = 1_000_000
LONGEST_US = 3650 * 86_400 * SECOND_US

_WORDS = {
    "second": SECOND_US,
    "minute": 60 * SECOND_US,
    "hour": 3_600 * SECOND_US,
    "day": 86_400 * SECOND_US,
}
_LETTERS = {
    "ms": 1_000,
    "s": SECOND_US,
    "m": 60 * SECOND_US,
    "h": 3_600 * SECOND_US,
    "d": 86_400 * SECOND_US,
}
_NUMBERED = re.compile(r"([0-9]{1,12})\s?(ms|s|m|h|d)", re.IGNORECASE)

_WEEKS = ("week", "weeks")
_ORDINARY = {
    "ms": ("millisecond", "milliseconds", "millis", "msec", "msecs"),
    "s": ("s", "sec", "secs", "second", "seconds"),
    "m": ("m", "min", "mins", "minute", "minutes"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "d": ("d", "day", "days", *_WEEKS),
}
_SPOKEN = re.compile(r"([0-9]{1,9})?\s*([a-z]+)?")

ALLOWED = "second, minute, hour, day, or a number with ms, s, m, h or d such as 30s or 5m"


@lru_cache(256)
def micros_from_spelling(text: str) -> int:
    """`minute` is 60,000,000; `30s` is 30,000,000."""
    word = text.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    numbered = _NUMBERED.fullmatch(word)
    if numbered is None:
        raise ConfigError(f"{shown(text)} is no duration; {_meant(word)}write {ALLOWED}")
    micros = int(numbered[1]) * _LETTERS[numbered[2]]
    if not 0 < micros <= LONGEST_US:
        raise ConfigError(f"{shown(text)} is out of range; a duration is from 1ms to 3650d")
    return micros


def _meant(word: str) -> str:
    """What ordinary words say, if that is plain: a week is seven days, but a month is no number of them."""
    spoken = _SPOKEN.fullmatch(word)
    if spoken is None or not (spoken[1] or spoken[2]):
        return ""
    count = int(spoken[1] or 1)
    if spoken[2] is None:
        unit, size = "s", 1
    else:
        found = next((unit for unit, words in _ORDINARY.items() if spoken[2] in words), None)
        if found is None:
            return ""
        unit, size = found, 7 if spoken[2] in _WEEKS else 1
    micros = count * size * _LETTERS[unit]
    if not 0 < micros <= LONGEST_US:
        return ""
    # As it was said, so that 3600 becomes 3600s: a limit written in seconds is thought of in seconds.
    alone = spelling_from_micros(micros) if count * size == 1 and spoken[2] else ""
    return f"did you mean {alone or f'{count * size}{unit}'}? "


def spelling_from_micros(micros: int) -> str:
    """60,000,000 is `minute`; 90,000,000 is `90s`."""
    for word, size in _WORDS.items():
        if micros == size:
            return word
    for letter, size in reversed(_LETTERS.items()):
        if micros % size == 0:
            return f"{micros // size}{letter}"
    return f"{micros}us"
