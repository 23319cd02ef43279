"""`segment NAME`: what the url captures as {NAME}."""

from __future__ import annotations

from diana.core.actor import Actor, Identity, Surroundings
from diana.core.errors import ConfigError


def _identity(argument: str, surroundings: Surroundings) -> Identity:
    captures = dict(surroundings.url.captures)
    if argument not in captures:
        known = ", ".join(f"{{{name}}}" for name in captures) or "nothing"
        raise ConfigError(
            f"the url {surroundings.url.spelling} captures {known}; "
            f"write {{{argument}}} into it, or name one it captures"
        )
    place = captures[argument]
    return lambda request: request.segments[place]


segment = Actor(_identity, argument="NAME", needs_url=True, kinds=frozenset())
