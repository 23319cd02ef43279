"""A log line for each denied request, at most 20 in ten seconds: `Guard.from_file("diana.yaml", observers=["denial_log"])`.

    GET '/search' denied by rule 'per address' (100/minute by ip), retry after 3.2 s, client digest 1c8f0a52b3de
    GET '/search' denied: the deny list of rule 'per address' has its ip 203.0.113.0/24, client digest 1c8f0a52b3de
    GET '/search' shed by cpu at 0.97: from 0.9 on, 30 % are rejected
    1,204 more denials were not logged in the last 10 s

Of each ten seconds the first denials are logged, and the first one of each rule even if others have used up the lines. Lines that are left
out are counted, and the count is logged with the next denial after the ten seconds. So a flood of denied requests costs a comparison each.

Who the client is, is the operator's choice: a digest of the key that it was counted by (the default: the same client is recognized, but
not known), the key in plain, or nothing. The path and the key are the client's words: they are escaped and cut.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import sha256
from threading import Lock
from time import monotonic

from diana.core.decision import NEVER, Decision
from diana.core.errors import ConfigError, shown
from diana.core.request import Request, printable
from diana.core.verdict import Verdict

log = logging.getLogger("diana.denials")

PERIOD_SECONDS = 10
LINES = 20
"""In each period; and one more for each rule that has none of them."""
MOST_RULES = 100
LONGEST = 200
CLIENTS = ("digest", "plain", "none")


class DenialLog:
    def __init__(self, clients: str = "digest", *, clock: Callable[[], float] = monotonic) -> None:
        if clients not in CLIENTS:
            raise ConfigError(f"clients must be one of {', '.join(CLIENTS)} (got {shown(clients)})")
        self._clients = clients
        self._clock = clock
        self._lock = Lock()
        self._ends = float("-inf")
        self._logged = self._left_out = 0
        self._rules: set[str] = set()

    def __call__(self, request: Request, verdict: Verdict) -> None:
        if verdict.allowed:
            return
        rule = "" if verdict.denied_by is None else verdict.denied_by.name
        with self._lock:
            left_out = self._begin_period()
            has_line = self._logged < LINES or (
                rule not in self._rules and len(self._rules) < MOST_RULES
            )
            if has_line:
                self._logged += 1
                self._rules.add(rule)
            else:
                self._left_out += 1
        if left_out:
            log.info("%s more denials were not logged in %d s", f"{left_out:,}", PERIOD_SECONDS)
        if has_line:
            log.info("%s", self._line(request, verdict))

    def _begin_period(self) -> int:
        """If the last one is over, how many lines it left out."""
        now = self._clock()
        if now < self._ends:
            return 0
        left_out, self._left_out, self._logged = self._left_out, 0, 0
        self._ends = now + PERIOD_SECONDS
        self._rules.clear()
        return left_out

    def _line(self, request: Request, verdict: Verdict) -> str:
        asked = f"{printable(request.method)} {_quoted(request.path)}"
        if verdict.denied_by is None:
            return f"{asked} {verdict.shed}" if verdict.shed else f"{asked} denied"
        rule, decision = verdict.denied_by, verdict.denial
        client = "" if decision is None or rule.actor == "all" else self._client(decision.key)
        if verdict.listed is not None:
            listed = f"the deny list of rule {rule.name!r} has its {verdict.listed}"
            return f"{asked} denied: {listed}{client}"
        line = f"{asked} denied by rule {rule.name!r} ({rule.meter.limit} by {rule.actor})"
        if decision is None:
            return line
        return line + _retry(decision) + client

    def _client(self, key: str) -> str:
        if self._clients == "none":
            return ""
        if self._clients == "plain":
            return f", client {_quoted(key)}"
        return f", client digest {sha256(key.encode('utf-8', 'replace')).hexdigest()[:12]}"


def _retry(decision: Decision) -> str:
    if decision.outcome[2] == NEVER:
        return ", never allowed"
    seconds = decision.retry_after
    if seconds is None:
        return ""  # until a slot is released
    return f", retry after {seconds:.3g} s" if seconds < 100 else f", retry after {seconds:.0f} s"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}...")
