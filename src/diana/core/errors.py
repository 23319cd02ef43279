"""Everything that can go wrong, as one tree.

DianaError
├── ConfigError     what you wrote cannot be meant: a spelling, a rule, a setting, a URL
├── CostError       a cost that is no whole number from 0
├── KeyTypeError    a key that is no str
├── TimeoutValueError   a timeout that is no number of seconds from 0
├── ReentrancyError a limiter was called in a signal handler that had interrupted a call of it
├── StoreError      the store was asked for something that has no local answer
│   └── SourceError   the rules cannot be had, or put, where they should be
└── LimitExceeded   raised by @limit, `require` and `slot` only; everywhere else a denial is a value
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diana.core.plain_text import plain, quotable

if TYPE_CHECKING:
    from diana.core.decision import Decision


class DianaError(Exception):
    """Catch this to catch everything Diana raises."""


class ConfigError(DianaError, ValueError):
    """What you wrote cannot be meant; the message says what to write instead."""

    def __init__(
        self,
        message: str,
        *,
        line: int | None = None,
        column: int | None = None,
        path: str | None = None,
        file: str | None = None,
    ) -> None:
        # A document from a server may have put anything into it. Several mistakes stand on lines of their own.
        message = plain(message, keep="\n")
        super().__init__(message)
        self.message = message
        self.file = file
        self.line = line
        self.column = column
        self.path = path
        self._errors: tuple[ConfigError, ...] = ()

    @property
    def errors(self) -> tuple[ConfigError, ...]:
        """Every mistake of a file, each with its own place."""
        # Not kept: an error that held itself would keep the frames that it passed through, until the garbage collector runs.
        return self._errors or (self,)

    @errors.setter
    def errors(self, errors: tuple[ConfigError, ...]) -> None:
        self._errors = errors


class CostError(DianaError, ValueError):
    """A cost is a whole number from 0 to 2**53 - 1."""

    def __init__(self, cost: object) -> None:
        super().__init__(f"cost is {shown(cost)}; write a whole number (int) from 0 to 2**53 - 1")
        self.cost = cost

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.cost,)


class KeyTypeError(DianaError, TypeError):
    """A key is a str: what looks the same must be the same in every store."""

    def __init__(self, key: object) -> None:
        super().__init__(f"a key is a str, not {type(key).__name__}; write str(key)")
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key,)


class ReentrancyError(DianaError, RuntimeError):
    """A signal handler, or a `__del__`, called a limiter while it had interrupted a call that holds the same store's lock."""

    def __init__(self) -> None:
        super().__init__(
            "a limiter must not be called by a signal handler or a __del__ that has interrupted a call on the same store: "
            "its lock is held until that call goes on; call it later, from the main program or another thread"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


class TimeoutValueError(DianaError, ValueError):
    """A timeout is a number of seconds from 0."""

    def __init__(self, timeout: object) -> None:
        super().__init__(
            f"timeout is {shown(timeout)}; write seconds from 0, or None to wait as long as it takes"
        )
        self.timeout = timeout

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.timeout,)


class StoreError(DianaError):
    """The store was asked for something that has no local answer, and did not give one."""


class SourceError(StoreError):
    """The rules cannot be had from where they should come, or not be put there.

    The message may quote what a server sent, so it is escaped here, for logs and terminals alike.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(quotable(message))


class LimitExceeded(DianaError):
    """A call decorated with @limit, or what stands under `hold` or `slot`, came too soon; `decision` says when to come back."""

    def __init__(self, decision: Decision) -> None:
        again = decision.retry_after
        if decision.never:
            when = "it can never pass"
        elif again is None:
            when = "all places are taken; it passes as soon as one is given back"
        else:
            when = f"retry after {again:g} s"
        super().__init__(f"over the limit of {decision.limit}: {when}")
        self.decision = decision

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.decision,)


SHOWN_WHOLE = 10**40


def shown(value: object) -> str:
    """What the user wrote, short enough for a message."""
    if isinstance(value, int) and not -SHOWN_WHOLE < value < SHOWN_WHOLE:
        return "a number of more than 40 digits"  # of more than 4300, Python has no text
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
