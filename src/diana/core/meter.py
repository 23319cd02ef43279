"""A limit with a name, made ready for its algorithm: all that a store needs to know to count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diana.core.contracts import Algorithm, Decide, Params
from diana.core.duration import spelling_from_micros
from diana.core.errors import ConfigError
from diana.core.limit import Limit


class Meter:
    """Charges with the same `id` and key meet in one counter.

    The id holds what a counter's state depends on: the name, the algorithm, the unit, and options such as `slices`. It does
    not hold `rpu` and `burst`, so that editing a limit keeps what was counted.
    """

    # Not a dataclass: importing those takes half as long as all of `import diana`.
    __slots__ = ("algorithm", "decide", "id", "limit", "options", "params", "when_down")

    def __init__(
        self,
        id: str,
        limit: Limit,
        algorithm: Algorithm,
        params: Params,
        options: Mapping[str, Any],
        when_down: str = "local",
    ) -> None:
        self.id = id
        self.limit = limit
        self.algorithm = algorithm
        self.params = params
        self.options = options
        self.when_down = when_down
        """Should the store be lost: `local` counts here, `open` lets pass, `closed` denies."""
        self.decide: Decide = algorithm.decide

    def __repr__(self) -> str:
        return f"Meter({self.id!r}, {self.limit})"


def meter_from_limit(
    name: str,
    limit: Limit,
    algorithm: Algorithm,
    options: Mapping[str, Any],
    when_down: str = "local",
) -> Meter:
    """Check the options and compute everything that can be computed before the first request."""
    for option in options:
        if option not in algorithm.options:
            raise ConfigError(_foreign(option, algorithm))
    given = {option: value for option, value in options.items() if value is not None}
    params = algorithm.params(limit, **given)
    parts = [name, algorithm.code, spelling_from_micros(limit.unit_us)]
    parts += [f"{option}={getattr(params, option)}" for option in algorithm.identity]
    return Meter("|".join(parts), limit, algorithm, params, given, when_down)


def escaped(part: str) -> str:
    """The bar separates the parts of a counter's identity, so none of them may hold one."""
    return part.replace("%", "%25").replace("|", "%7C")


def _foreign(option: str, algorithm: Algorithm) -> str:
    known = ", ".join(algorithm.options) or "none"
    return (
        f"{option!r} is no option of {algorithm.spelling} ({algorithm.code}); its options: {known}"
    )
