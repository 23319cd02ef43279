"""`header NAME`: what the header says. Two lines that contradict each other say nothing.

Of `Authorization`, the scheme is in any case, and blanks around the credential are none: `Bearer x` and `BEARER  x` are one.
"""

from __future__ import annotations

from diana.core.actor import Actor, Identity, RuleContext
from diana.core.request import checked_token

CREDENTIALS = ("authorization", "proxy-authorization")


def _identity(argument: str, surroundings: RuleContext) -> Identity:
    name = checked_token(argument, "header X-Tenant").lower()
    if name in CREDENTIALS:
        return lambda request: _credential(request.header(name))
    return lambda request: request.header(name)


def _credential(value: str | None) -> str | None:
    if value is None:
        return None
    scheme, *rest = value.split()
    return " ".join((scheme.lower(), *rest))


header = Actor(
    _identity,
    argument="NAME",
    secret=True,
    any_case=True,
    same_everywhere=True,
    reads_path=False,
    kinds=frozenset(),
    chosen_by_clients=True,
)
