"""Kinds of identities, and the keys made of them: injective, bounded, and without secrets.

An `Actor` reads the first word of a rule's `actor` and returns a function from a request to an identity. No value can be chosen so that
two identities share a counter: a plain value follows `=`, a digest follows `#`, a value for a missing identity follows `?`, and each part
of a combination begins with its length.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from diana.core.client_address import Proxies
from diana.core.request import Request
from diana.core.url_pattern import Url

Identity = Callable[[Request], str | None]
"""Who is asking? None if the request does not say."""

KINDS = frozenset({"account", "device"})
"""Identities that the setting `identity` defines, and that code may find (`account=` of a middleware)."""

CODE = "code"
"""In `identity`, in place of an actor: the application's code finds it."""


class RuleContext(NamedTuple):
    """What an actor may know of the rule it stands in."""

    url: Url
    proxies: Proxies
    account: Identity
    device: Identity


def identity_from_code(kind: str, otherwise: Identity) -> Identity:
    """What code found out about the request (`account=` of a middleware); else what the rules file says."""

    def identity(request: Request) -> str | None:
        by_code = request.identities
        if by_code is None or kind not in by_code:
            return otherwise(request)
        value = by_code[kind]
        if isinstance(value, Exception):
            raise value
        return value

    return identity


class Actor(NamedTuple):
    """`header X-Tenant` is made by `header`, given `X-Tenant`.

    The defaults suit an actor of which nothing is known; those that come with Diana say more, and cost less for it.
    """

    identity: Callable[[str, RuleContext], Identity]
    """Check what can be checked at load (ConfigError); look up per request what it returns."""
    argument: str | None = None
    """What stands behind the word, for messages: `NAME`; None if nothing does."""
    secret: bool = False
    """Its values are counted by their digest."""
    any_case: bool = False
    """The argument means the same in capitals and in small letters."""
    also_written: tuple[str, ...] = ()
    """Other words for it."""
    constant: str | None = None
    """Its value, if that is the same for every request: then it says nothing in a combination."""
    needs_url: bool = False
    """It means something under a rule's url only, not in `identity`."""
    same_everywhere: bool = False
    """It does not look at `Surroundings.url`: all rules may share one."""
    reads_path: bool = True
    """What it finds may be another for another reading of the path: it is asked once for each."""
    kinds: frozenset[str] = KINDS
    """Which of the identities that code may find it looks at; others are not asked for its sake."""
    canonical: Callable[[str], str | None] | None = None
    """From a value as an operator writes it to the one it finds; None: it is no value of it. Without it, they are the same."""
    chosen_by_clients: bool = False
    """Its value is whatever a client sends."""


LONGEST_PLAIN = 64
LONGEST_REMEMBERED = 256


def key_from_value(value: str) -> str:
    """`=alice`, or `#` and a digest if it is long, or no text that can be written down."""
    if len(value) <= LONGEST_PLAIN and (value.isascii() or value.isprintable()):
        return f"={value}"
    return f"#{digest(value)}"


def key_from_secret(value: str) -> str:
    """`#` and a digest: what a header or a cookie holds may be a credential."""
    return _remembered(value) if len(value) <= LONGEST_REMEMBERED else f"#{digest(value)}"


def key_from_parts(keys: list[str]) -> str:
    """Several keys as one."""
    return "".join(f"{len(key)}{key}" for key in keys)


def digest(value: str) -> str:
    """128 bits of SHA-256 in hex: other gateways can compute it too."""
    return sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@lru_cache(4_096)
def _remembered(value: str) -> str:
    return f"#{digest(value)}"
