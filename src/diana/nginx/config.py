"""A configuration of nginx as a tree of directives. Crossplane, nginx's own reader, knows quotes and includes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from diana.core.errors import ConfigError


class Directive(NamedTuple):
    name: str
    args: tuple[str, ...]
    file: str
    line: int
    block: tuple[Directive, ...] = ()

    def each(self, *names: str) -> Iterator[Directive]:
        """Those of these names that stand directly in its block."""
        return (one for one in self.block if one.name in names)


class Note(NamedTuple):
    """Something that a person has to know: what was not translated, or not to the letter."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


def read_config(path: str) -> Directive:
    """The level of `http`: that of the file, or the file itself if it is one that is included there."""
    try:
        import crossplane
    except ImportError:
        raise ConfigError(
            "reading a configuration of nginx needs crossplane; pip install 'diana-limiter[nginx]'"
        ) from None
    read = crossplane.parse(path, combine=True, comments=False, check_ctx=False, check_args=False)
    for error in read["errors"]:
        raise ConfigError(f"{error['file']}: {error['error']}", line=error.get("line"))
    top = tuple(_directive(one) for config in read["config"] for one in config["parsed"])
    for one in top:
        if one.name == "http":
            return one
    return Directive("http", (), path, 1, top)


def _directive(parsed: dict[str, Any]) -> Directive:
    return Directive(
        parsed["directive"],
        tuple(parsed["args"]),
        parsed["file"],
        parsed["line"],
        tuple(map(_directive, parsed.get("block", ()))),
    )
