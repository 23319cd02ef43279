"""Urls in rules: a prefix by whole segments, with `{name}` and `*` for one segment each; `%2A`, `%7B`, `%7D` are the signs themselves."""

from __future__ import annotations

import re
from typing import NamedTuple

from diana.core.errors import ConfigError, shown
from diana.core.path import segments_of_path

_REGULAR = re.compile(r"^[~^]|[.)\]][*+]|\\[dDwWsSbB.]|\(\?|\[\^|\[[^]/]+-[^]/]+\]|\$$")
"""What stands in regular expressions, and hardly in a path. A path that has it all the same can be written percent-encoded."""
_PLAIN = re.compile(r"[A-Za-z0-9_~-]+(?:\.[A-Za-z0-9_~-]+)*")
_CAPTURE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}")
_LITERAL = {"*": "%2A", "{": "%7B", "}": "%7D"}
_ENCODED = re.compile(r"%(?:2A|7B|7D)", re.IGNORECASE)
# Encoded signs while a url is read: no decoding gives these surrogates.
_MARKS = {"%2A": "\ud805", "%7B": "\ud806", "%7D": "\ud807"}
_SIGNS = str.maketrans({_MARKS[encoded]: sign for sign, encoded in _LITERAL.items()})
_SPELLED = str.maketrans(_LITERAL)


class Url(NamedTuple):
    """`/users/{id}/orders/*`: its segments, None for one that is anything."""

    spelling: str
    segments: tuple[str | None, ...]
    captures: tuple[tuple[str, int], ...]
    """Names and the places of the segments they capture."""

    def covers(self, other: Url) -> bool:
        """Whatever the other matches, this one matches too."""
        return self.covers_path(other.segments)

    def covers_path(self, segments: tuple[str | None, ...]) -> bool:
        if len(self.segments) > len(segments):
            return False
        pairs = zip(self.segments, segments, strict=False)
        return all(mine is None or mine == theirs for mine, theirs in pairs)


def url_from_spelling(text: str) -> Url:
    if _REGULAR.search(text):
        raise ConfigError(
            f"url must be a path, not a regular expression (got {shown(text)}); write {_prefix_meant(text)}, "
            "which covers all paths below it"
        )
    if "://" in text:
        raise ConfigError(
            f"the url {shown(text)} names a host; write the path only, and limit by actor: host"
        )
    if not text.startswith("/"):
        raise ConfigError(f"the url {shown(text)} does not start with /; write /{text[:40]}")
    if "?" in text:
        raise ConfigError(
            f"the url {shown(text)} has a query; write the path only, and limit by actor: query NAME"
        )
    if "#" in text:
        raise ConfigError(f"the url {shown(text)} has a fragment (#); write the path only")
    segments: list[str | None] = []
    captures: dict[str, int] = {}
    marked = _ENCODED.sub(lambda found: _MARKS[found[0].upper()], text)
    for segment in segments_of_path(marked):
        literal = segment.translate(_SIGNS)
        named = _CAPTURE.fullmatch(segment)
        if named is not None:
            if named[1] in captures:
                raise ConfigError(
                    f"the url {text!r} captures {{{named[1]}}} twice; name them apart"
                )
            captures[named[1]] = len(segments)
            segments.append(None)
        elif segment == "*":
            segments.append(None)
        elif segment.startswith("{") and segment.endswith("}"):
            raise ConfigError(
                f"{shown(literal)} in the url {shown(text)} is no name; write letters, digits, _ or -, a letter first"
            )
        elif any(sign in segment for sign in "*{}"):
            raise ConfigError(
                f"{shown(literal)} in the url {shown(text)}: * and {{name}} stand for one whole segment, and "
                "a url covers all below it anyway; the signs themselves are written %2A, %7B and %7D"
            )
        elif not literal.isprintable():
            raise ConfigError(f"the url {shown(text)} is no text; write it in UTF-8")
        else:
            segments.append(literal)
    spelled = "/" + "/".join(_spelled(segments, captures))
    return Url(spelled, tuple(segments), tuple(captures.items()))


def _spelled(segments: list[str | None], captures: dict[str, int]) -> list[str]:
    names = {place: f"{{{name}}}" for name, place in captures.items()}
    return [
        names.get(place, "*") if part is None else part.translate(_SPELLED)
        for place, part in enumerate(segments)
    ]


def _prefix_meant(expression: str) -> str:
    """`/users/*/orders` for `^/users/[0-9]+/orders/?$`."""
    path = expression.lstrip("~^* ").rstrip("$").replace("\\.", ".")
    words = [word if _PLAIN.fullmatch(word) else "*" for word in path.split("/")[1:]]
    while words and words[-1] == "*":
        words.pop()
    return "/" + "/".join(words)
