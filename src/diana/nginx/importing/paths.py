"""Paths of locations as urls of rules: nginx compares them sign by sign, with the decoded path of the request."""

from __future__ import annotations

from urllib.parse import quote

from diana.core.errors import ConfigError
from diana.core.path_readings import readings_of_path
from diana.core.url_pattern import url_from_spelling
from diana.nginx.importing.notes import Untranslatable

_READABLE = "/-._~!$&'()+,:=@"


def url_of_path(path: str) -> str:
    """The url whose own words are all literal. Untranslatable if rules read it in another way than nginx."""
    segments = segments_of_location(path)
    return url_of_segments(segments)


def segments_of_location(path: str) -> tuple[str, ...]:
    return tuple(path.strip("/").split("/")) if path.strip("/") else ()


def url_of_segments(segments: tuple[str, ...], below: bool = False) -> str:
    """`below`: all that is under it, without itself."""
    literal = tuple(quote(segment, _READABLE) for segment in segments)
    spelling = "/" + "/".join(literal)
    try:
        url = url_from_spelling(spelling)
    except ConfigError:
        raise Untranslatable(f"{spelling} is no url of a rule") from None
    if url.segments != segments or readings_of_path(spelling) != (segments,):
        raise Untranslatable(f"{spelling} is a path that rules read in several ways")
    return "/" + "/".join((*literal, "*")) if below else spelling
