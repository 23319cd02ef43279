"""`segment NAME`: what the url captures as {NAME}. `segment NAME as int`: as a number, however it is spelled."""

from __future__ import annotations

from diana.actors import conversion_from_argument
from diana.core.actor import Actor, Identity, RuleContext
from diana.core.errors import ConfigError


def _identity(argument: str, surroundings: RuleContext) -> Identity:
    captures = dict(surroundings.url.captures)
    name, convert = conversion_from_argument(argument)
    if name not in captures:
        known = ", ".join(f"{{{name}}}" for name in captures) or "nothing"
        raise ConfigError(
            f"the url {surroundings.url.spelling} captures {known}; "
            f"write {{{name}}} into it, or name one it captures"
        )
    place = captures[name]
    return lambda request: convert(request.segments[place])


segment = Actor(_identity, argument="NAME", needs_url=True, kinds=frozenset())
