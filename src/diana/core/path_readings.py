r"""Paths as rules see them: every way in which an application behind may read one.

A client chooses how to spell a path, and servers differ in what they make of it: `/x/../login` is the login page of one that resolves dot
segments and `/x/{any}/login` of one that does not; `/find/a%2Fb/results` has three segments or four. So a path has *readings*, and
the rules of all of them apply. The classes of ambiguity, each taken one way throughout a reading:

    `%2F`                    a separator, or part of its segment
    `\` and `%5C`            separators; only the bare one; or literal
    `;` and `%3B`            parameters, to the end of the segment; only behind the bare one; or literal
    control characters       the end of the segment, or literal
    `#`                      the end of the path, or literal
    `.` and `..`             resolved; only those not percent-encoded; or literal
    empty segments           dropped before `..` is resolved; after it; or segments like others

Equal readings collapse, and an ordinary path has one, found by one regular expression. The first one is the canonical: of each
class what is named first. A path with more than MOST_READINGS of them, or so long that they cost more than MOST_WORK, has none: it is
covered by every rule whose own words all occur in it, in whatever order (`words_of_path`).

What is not UTF-8 stays as it is (in surrogates): it matches no rule's own words but everything broader.

The same handlers may be reached under a prefix, a *mount*: `root_path` and `SCRIPT_NAME` of the server, or the setting `mounts`. Whether
the path contains the prefix depends on what removed it, so both are tried: a rule on `/login` covers `/api/login`, and one on
`/api/login` covers `/login`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import unquote

PathReading = tuple[str, ...]

MOST_READINGS = 64
MOST_WORK = 4_096
"""Segments, and every 32 characters, that are looked at for one path, all readings together."""

_ORIGIN = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*://[^/?]*")
"""What a client of a proxy sends before the path."""
_PLAIN = re.compile(r"(?:/[^/%;?#.\\\x00-\x1F\x7F][^/%;?#\\\x00-\x1F\x7F]*)+")
_AMBIGUOUS = re.compile(
    r"//|(?:\A|/)\.\.?(?:/|\Z)|[\\;#\x00-\x1F\x7F]|%(?:2[EeFf]|5[Cc]|[01][0-9A-Fa-f]|7[Ff]|3[Bb])"
)

# Percent-encoded signs that may mean something else than bare ones, while a path is read: no decoding gives these surrogates.
_SLASH, _DOT, _BACKSLASH, _SEMICOLON = "\ud801", "\ud802", "\ud803", "\ud804"
_RESERVED = re.compile("[\ud801-\ud804]")
_ENCODED = re.compile(r"%(?:2[EeFf]|5[Cc]|3[Bb])")
_SIGNS = {"%2f": _SLASH, "%2e": _DOT, "%5c": _BACKSLASH, "%3b": _SEMICOLON}

_SEGMENT_BEGINS_WITH_DOT = re.compile(r"(?:\A|[/\\])\.")
_CONTROL = re.compile(r"[\x00-\x1F\x7F]")
_BEHIND_CONTROL = re.compile(r"[\x00-\x1F\x7F][^/]*")
_PARAMETERS = re.compile(f"[;{_SEMICOLON}][^/]*")
_BARE_PARAMETERS = re.compile(r";[^/]*")
_BETWEEN_WORDS = re.compile(f"[/\\\\;\\x00-\\x1F\\x7F{_SLASH}{_BACKSLASH}{_SEMICOLON}]")


def segments_of_path(path: str) -> PathReading:
    """The canonical reading: `/a//b/../c/` is ("a", "c")."""
    if _PLAIN.fullmatch(path):
        return tuple(path[1:].split("/"))
    text = _decoded(_target(path).partition("#")[0])
    for variants in (_slashes, _backslashes, _parameters, _controls):
        text = next(iter(variants(text)))
    return next(_resolutions(text))


def readings_of_path(path: str) -> tuple[PathReading, ...] | None:
    """Every reading, the canonical one first; None if they are too many."""
    if _PLAIN.fullmatch(path):
        return (tuple(path[1:].split("/")),)
    target = _target(path)
    if _AMBIGUOUS.search(target) is None:
        decoded = unquote(target, errors="surrogateescape")
        return (tuple(segment for segment in decoded.split("/") if segment),)
    if _is_too_much(target):
        return None
    texts: Iterable[str] = dict.fromkeys((target.partition("#")[0], target))
    texts = [_decoded(text) for text in texts]
    for variants in (_slashes, _backslashes, _parameters, _controls):
        texts = dict.fromkeys(variant for text in texts for variant in variants(text))
    return tuple(dict.fromkeys(reading for text in texts for reading in _resolutions(text)))


def words_of_path(path: str) -> frozenset[str]:
    """All that may be a whole segment in some reading of it, if it has no sign in it that is read in several ways."""
    text = _decoded(_target(path).replace("#", "/")).replace(_DOT, ".")
    return frozenset(_BETWEEN_WORDS.split(text))


def path_of_segments(segments: PathReading) -> str:
    """One path for one reading: a slash within a segment is encoded, and so is what would look like one."""
    path = "/" + "/".join(segments)
    if "%" not in path and path.count("/") <= max(1, len(segments)):
        return path
    return "/" + "/".join(part.replace("%", "%25").replace("/", "%2F") for part in segments)


def _target(path: str) -> str:
    target = _ORIGIN.sub("", path, 1) if "://" in path else path
    return target.partition("?")[0]


def _decoded(text: str) -> str:
    """Decoded once, but for what may be read in two ways."""
    marked = _ENCODED.sub(lambda found: _SIGNS[found[0].lower()], _RESERVED.sub("\ufffd", text))
    return unquote(marked, errors="surrogateescape")


def _is_too_much(target: str) -> bool:
    """By what occurs in it, before anything is built."""
    encoded = {found.lower() for found in _ENCODED.findall(target)}
    backslashes = ("\\" in target) + ("%5c" in encoded)
    parameters = (";" in target) + ("%3b" in encoded)
    dots = (_SEGMENT_BEGINS_WITH_DOT.search(target) is not None) + ("%2e" in encoded)
    ends = "#" in target
    controls = _CONTROL.search(unquote(target)) is not None
    readings = (1 + ("%2f" in encoded)) * (1 + backslashes) * (1 + parameters)
    readings *= (1 + dots) * (1 + controls) * (1 + ends) * 3
    separators = target.count("/") + target.count("\\") + len(_ENCODED.findall(target))
    return readings > MOST_READINGS or readings * (separators + len(target) // 32) > MOST_WORK


def _slashes(text: str) -> Iterator[str]:
    yield text.replace(_SLASH, "/")
    yield text


def _backslashes(text: str) -> Iterator[str]:
    yield text.replace("\\", "/").replace(_BACKSLASH, "/")
    yield text.replace("\\", "/").replace(_BACKSLASH, "\\")
    yield text.replace(_BACKSLASH, "\\")


def _parameters(text: str) -> Iterator[str]:
    yield _PARAMETERS.sub("", text)
    yield _BARE_PARAMETERS.sub("", text).replace(_SEMICOLON, ";")
    yield text.replace(_SEMICOLON, ";")


def _controls(text: str) -> Iterator[str]:
    yield _BEHIND_CONTROL.sub("", text)
    yield text


def _resolutions(text: str) -> Iterator[PathReading]:
    """What dot segments and empty ones may mean."""
    spelled = text.replace(_DOT, ".")
    for resolve, source in ((_resolve, spelled), (_resolve, text), (list, spelled)):
        segments = source.removeprefix("/").split("/")
        yield _reading(filter(None, resolve(list(filter(None, segments)))))
        if "" in segments:
            resolved = resolve(segments)
            yield _reading(filter(None, resolved))
            while resolved and not resolved[-1]:
                resolved.pop()
            yield _reading(resolved)


def _resolve(segments: list[str]) -> list[str]:
    resolved: list[str] = []
    for segment in segments:
        if segment == "..":
            del resolved[-1:]
        elif segment != ".":
            resolved.append(segment)
    return resolved


def _reading(segments: Iterable[str]) -> PathReading:
    return tuple(
        segment.replace(_SLASH, "/").replace(_DOT, ".") if _RESERVED.search(segment) else segment
        for segment in segments
    )


class Readings(NamedTuple):
    sent: tuple[PathReading, ...]
    """What the client may have meant: as it was sent, and without the mounts it was sent under."""
    added: tuple[PathReading, ...] = ()
    """The same under the mounts it was not sent under: rules may be written for that."""

    @property
    def all(self) -> tuple[PathReading, ...]:
        return self.sent + self.added


def readings_under_mounts(
    path: str, mount: str, mounts: tuple[PathReading, ...]
) -> Readings | None:
    """All readings of a path, of an application mounted at `mount`, behind others that mount it at any of `mounts`."""
    prefixes = tuple(filter(None, (segments_of_path(mount), *mounts)))
    sent: dict[PathReading, None] = {}
    # Before the path is read, too: `/a/b/../login` is `/../login` behind a mount at /a/b.
    for text in (path, *_without(path, (mount, *map(path_of_segments, mounts)))):
        readings = readings_of_path(text)
        if readings is None:
            return None
        sent |= dict.fromkeys(readings)
    for _ in prefixes:
        for prefix in prefixes:
            stripped = [r[len(prefix) :] for r in sent if r[: len(prefix)] == prefix]
            sent |= dict.fromkeys(stripped)
    added = dict.fromkeys(
        prefix + reading
        for prefix in prefixes
        for reading in sent
        if reading[: len(prefix)] != prefix
    )
    return Readings(tuple(sent), tuple(reading for reading in added if reading not in sent))


def _without(path: str, mounts: Iterable[str]) -> list[str]:
    prefixes = (mount.rstrip("/") for mount in mounts)
    return [path[len(prefix) :] for prefix in prefixes if prefix and path.startswith(f"{prefix}/")]
