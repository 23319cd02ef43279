"""How limits are spelled, and how a wrong spelling is answered."""

from __future__ import annotations

import pytest

from diana import ConfigError, Limiter
from diana.core.duration import micros_from_spelling, spelling_from_micros
from diana.core.limit import Limit, limit_from_spelling, limits_from_spelling

SECOND_US = 1_000_000


@pytest.mark.parametrize(
    ("spelling", "limit"),
    [
        ("100/minute", Limit(100, 60 * SECOND_US)),
        ("5/second", Limit(5, SECOND_US)),
        ("1/hour", Limit(1, 3_600 * SECOND_US)),
        ("7/day", Limit(7, 86_400 * SECOND_US)),
        ("10 per 30s", Limit(10, 30 * SECOND_US)),
        ("10 per second", Limit(10, SECOND_US)),
        ("10/500ms", Limit(10, 500_000)),
        ("10 / 5m", Limit(10, 300 * SECOND_US)),
        ("  2/2h ", Limit(2, 7_200 * SECOND_US)),
        ("10 PER Minute", Limit(10, 60 * SECOND_US)),
        ("10/MINUTE", Limit(10, 60 * SECOND_US)),
        ("3/1D", Limit(3, 86_400 * SECOND_US)),
    ],
)
def test_spellings(spelling: str, limit: Limit) -> None:
    assert limit_from_spelling(spelling) == limit


@pytest.mark.parametrize(
    "spelling",
    [
        "5/w", "10/month", "0 at once", "-1/minute", "1e3/s", "5/ second/2", "", "5", "/second", "5/", "5/s", "5/m", "5 second",
        "5.0/second", "٥/second", "5/0s", "1_000/second", "5/-1s", "5/1.5s", "5/second;", "5/secondly",
        "5/seconds", "9999999999999999/second",
        "5/5", "five/second", "5//second", "5/99999d", "1000000000001/day",
    ],
)  # fmt: skip
def test_what_is_no_limit_is_an_error_that_says_what_is_allowed(spelling: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Limiter(spelling)
    assert any(
        hint in str(caught.value) for hint in ("such as", "write a whole number", "from 1ms")
    )


def test_the_message_names_the_unit_it_could_not_read() -> None:
    with pytest.raises(ConfigError) as caught:
        limit_from_spelling("10/month")
    assert str(caught.value) == (
        "in the limit '10/month': 'month' is no duration; write second, minute, hour, day, "
        "or a number with ms, s, m, h or d such as 30s or 5m"
    )


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("s", "second"), ("sec", "second"), ("seconds", "second"), ("Seconds", "second"), ("m", "minute"), ("min", "minute"),
        ("mins", "minute"), ("minutes", "minute"), ("h", "hour"), ("hr", "hour"), ("hours", "hour"), ("d", "day"), ("days", "day"),
        ("1 minute", "minute"), ("1 hour", "hour"), ("60", "60s"), ("3600", "3600s"), ("30 seconds", "30s"), ("5 minutes", "5m"),
        ("2 hours", "2h"), ("7 days", "7d"), ("250 milliseconds", "250ms"), ("30sec", "30s"), ("week", "7d"), ("2 weeks", "14d"),
    ],
)  # fmt: skip
def test_an_ordinary_word_gets_the_spelling_that_was_meant(written: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"is no duration; did you mean {meant}\? write second"):
        micros_from_spelling(written)
    assert micros_from_spelling(meant)


@pytest.mark.parametrize("written", ["w", "month", "soon", "0", "1.5", "3 moons", "99999999999"])
def test_nothing_is_guessed_where_it_is_not_plain(written: str) -> None:
    with pytest.raises(ConfigError) as caught:
        micros_from_spelling(written)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("limit", "meant"), [("5/s", "second"), ("5/60", "60s"), ("5 per 1 minute", "minute")]
)
def test_a_limit_gets_it_too(limit: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"in the limit '{limit}': .* did you mean {meant}\?"):
        Limiter(limit)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("token-bucket", "token bucket"), ("token_bucket", "token bucket"), ("tokenbucket", "token bucket"),
        ("leakybucket", "leaky bucket"), ("sliding-window", "sliding window"), ("windows", "window"),
        ("fixed-windows", r"fixed window \(W\)"),
    ],
)  # fmt: skip
def test_an_algorithm_gets_the_spelling_that_was_meant(written: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"is no algorithm; did you mean {meant}\? write one"):
        Limiter("5/second", algo=written)


def test_several_limits() -> None:
    assert limits_from_spelling("5/second; 100/minute") == [
        Limit(5, SECOND_US),
        Limit(100, 60 * SECOND_US),
    ]


@pytest.mark.parametrize(
    "text", ["second", "minute", "hour", "day", "30s", "1500ms", "36h", "90m", "7d"]
)
def test_a_duration_is_spelled_back_so_that_it_reads_the_same(text: str) -> None:
    micros = micros_from_spelling(text)
    assert micros_from_spelling(spelling_from_micros(micros)) == micros


def test_a_limit_reads_as_it_is_written() -> None:
    assert str(limit_from_spelling("10 per 60s")) == "10/minute"
    assert str(limit_from_spelling("10/90s")) == "10/90s"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"algo": "XX"}, "'XX' is no algorithm; write one of"),
        ({"burst": 0}, "burst is 0; a token bucket holds a whole number of tokens from 1"),
        ({"burst": 2.5}, "burst is 2.5"),
        ({"burst": True}, "burst is True"),
        ({"algo": "W", "burst": 3}, "'burst' is no option of window (W); its options: align"),
        ({"algo": "SL", "burst": 3}, "'burst' is no option of sliding log (SL); its options: none"),
        ({"algo": "W", "align": "noon"}, "align is 'noon'; write epoch or first"),
        ({"algo": "SW", "slices": 0}, "slices is 0; write a whole number from 1 to 1000"),
        ({"algo": "LB", "nodelay": True, "delay": 2}, "nodelay lets nobody wait"),
        ({"algo": "LB", "nodelay": True, "max_wait": "2s"}, "nodelay lets nobody wait"),
        ({"algo": "LB", "nodelay": 1}, "nodelay is 1; write true or false"),
        ({"algo": "LB", "max_wait": 2}, "max_wait is 2; write a duration such as 2s"),
        ({"algo": "LB", "delay": -1}, "delay is -1"),
        ({"algo": "LB", "burst": 100, "max_wait": "1s"}, "write a burst of at most 10"),
        ({"store": "memory"}, "store must be a URL with a scheme (got 'memory'); write memory://"),
        ({"store": "memory://?max_keys=lots"}, "write memory:// or memory://?max_keys=N"),
        ({"store": "memory://?keys=5"}, "write memory:// or memory://?max_keys=N"),
        ({"store": "memory://?max_keys=0"}, "max_keys is 0; write a whole number from 1"),
        ({"store": "carrier://pigeon"}, "nothing called 'carrier' in diana.stores; there is"),
        ({"when_down": "panic"}, "when_down is 'panic'; write one of local, open, closed"),
    ],
)
def test_a_wrong_option_is_an_error_that_helps(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Limiter("10/second", **arguments)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_what_cannot_be_counted_exactly_is_refused() -> None:
    with pytest.raises(ConfigError, match="too large to count exactly"):
        Limiter("7/86399s", burst=10**12)
    with pytest.raises(ConfigError, match="centuries to refill"):
        Limiter("10/second", burst=10**12)


def test_one_unit_twice_is_an_error() -> None:
    with pytest.raises(ConfigError, match="keep the tighter"):
        Limiter("5/second; 10/second")
