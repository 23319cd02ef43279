"""What may come instead of a reply, and what is then known of the request.

Failure
├── NoConnection       it was never sent: no connection was ready in time
├── Unreachable        it was never sent: no connection could be opened
├── ServerRefused      the server refused it: nothing was done
├── DeadlinePassed     it reached the server after its deadline: nothing was done
├── UnknownOutcome     it was sent, and its outcome is unknown: never repeated, refunded or charged again
│   ├── BudgetExceeded   nothing has arrived within the budget
│   └── ProtocolError    what arrived is not a reply of a store
├── Moved              the key is on another server: nothing was done
└── BadCounter         the server is healthy, but the key holds something else than a counter
    └── Contended        others change the counter all the time: nothing was done
"""

from __future__ import annotations

import re

from diana.core.plain_text import quotable


class Failure(Exception):
    """Nothing was done, unless it is an UnknownOutcome. The message may quote the server, so it is escaped here."""

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
