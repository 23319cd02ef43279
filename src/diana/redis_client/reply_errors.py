"""What may come back instead of a reply, and what is known then of what was asked.

Failure
├── NoConnection   it was never sent: nothing was ready in time
├── Unreachable    it was never sent: no connection could be opened
├── Refused        the server said no, to us or to everybody: nothing was done
├── TooLate        it came to the server after its deadline: nothing was done
├── NoReply        it was sent, and what became of it is unknown: never repeated, given back or charged again
│   ├── Overrun    nothing has arrived within the budget
│   └── Nonsense   what came is not what a store says
├── Moved          the key is on another server: nothing was done
└── BadCounter     the server is healthy, but this counter holds something else
    └── Contended  others write to the counter all the time: nothing was done
"""

from __future__ import annotations

import re

from diana.core.plain_text import quotable


class Failure(Exception):
    """Nothing was done, unless it is a NoReply. The message may quote the server, so it is escaped here, for logs and terminals alike."""

    def __init__(self, said: str = "") -> None:
        super().__init__(quotable(said))


class NoConnection(Failure):
    pass


class Unreachable(Failure):
    def __init__(self, said: str, silent: bool = False) -> None:
        """`silent`: nothing came back, so the reply alone may have been lost."""
        super().__init__(said)
        self.silent = silent


class ServerRefused(Failure):
    pass


class DeadlinePassed(Failure):
    pass


class UnknownOutcome(Failure):
    pass


class BudgetExceeded(UnknownOutcome):
    def __init__(self, proves_silence: bool = False) -> None:
        """`proves_silence`: a background thread waited, on a second connection, because a request waits for the server, too."""
        super().__init__("no reply within the budget")
        self.proves_silence = proves_silence


class ProtocolError(UnknownOutcome):
    def __init__(self, said: str = "unexpected reply") -> None:
        super().__init__(said)


class BadCounter(Failure):
    pass


class Contended(BadCounter):
    pass


class Moved(Failure):
    def __init__(self, endpoint: str, asking: bool) -> None:
        super().__init__(endpoint)
        self.endpoint = endpoint
        self.asking = asking
        """For this command only: the slot is on its way."""


_SERVER_WIDE = re.compile(
    r"\b(OOM|READONLY|MISCONF|NOREPLICAS|NOPERM|MASTERDOWN|CLUSTERDOWN|LOADING|BUSY)\b"
)


def failure_from_error(error: str) -> Failure:
    """What a server's error means for the request."""
    word, _, rest = error.partition(" ")
    if word in ("MOVED", "ASK"):
        return Moved(rest.rpartition(" ")[2], asking=word == "ASK")
    if word in ("TRYAGAIN", "CROSSSLOT") or "WRONGTYPE" in error:
        return BadCounter(error)
    return ServerRefused(error)


def failure_from_script(text: str) -> Failure:
    """One request failed inside the script: because of the server, or only of this counter?"""
    return ServerRefused(text) if _SERVER_WIDE.search(text) else BadCounter(text)
