"""Kinds of identity: what stands behind the first word of a rule's `actor`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from diana.core.address import Proxies
from diana.core.request import Request
from diana.core.url import Url

Identity = Callable[[Request], str | None]
"""Who is asking? None if the request does not say."""


class Surroundings(NamedTuple):
    """What an actor may know of the rule it stands in."""

    url: Url
    proxies: Proxies
    account: Identity
    device: Identity


def told_by_code(kind: str, otherwise: Identity) -> Identity:
    """What code found out about the request (`account=` of a middleware); else what the rules file says."""

    def identity(request: Request) -> str | None:
        told = request.identities
        if told is None or kind not in told:
            return otherwise(request)
        found = told[kind]
        if isinstance(found, Exception):
            raise found
        return found

    return identity


class Actor(NamedTuple):
    """`header X-Tenant` is made by `header`, given `X-Tenant`."""

    identity: Callable[[str, Surroundings], Identity]
    """Check what can be checked at load (ConfigError); look up per request what it returns."""
    argument: str | None = None
    """What stands behind the word, for messages: `NAME`; None if nothing does."""
    secret: bool = False
    """Its values are counted by their digest."""
    any_case: bool = False
    """The argument means the same in capitals and in small letters."""
