"""An actor of somebody else's: `country`, as a proxy in front says it."""

from diana.plugins import Actor


def _identity(argument, surroundings):
    return lambda request: request.header("x-country")


country = Actor(_identity)
