"""Urls in rules, and which of them cover a path.

A url is a prefix of whole segments; `{name}` and `*` match one segment each, and `%2A`, `%7B`, `%7D` are the characters themselves. Urls
are kept in a tree of segments, so a lookup among ten thousand urls costs what a lookup among ten does. Every node has all items on the
way down to it, so where no `*` or `{name}` branches off, the last node has the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from diana.core.errors import ConfigError, shown
from diana.core.path_readings import segments_of_path

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


Item = TypeVar("Item")


class TreeNode(Generic[Item]):
    __slots__ = ("any", "children", "match", "own", "so_far")

    def __init__(self) -> None:
        self.own: tuple[Item, ...] = ()
        self.so_far: tuple[Item, ...] = ()
        """Its own items and those of all nodes above."""
        self.children: dict[str, TreeNode[Item]] | None = None
        self.any: TreeNode[Item] | None = None
        self.match: Any = None
        """What the tree's owner remembers of `so_far`."""


class SegmentTree(Generic[Item]):
    def __init__(self, items: Iterable[tuple[Url, Item]]) -> None:
        self._root: TreeNode[Item] = TreeNode()
        for url, item in items:
            node = self._root
            for segment in url.segments:
                node = _descend(node, segment)
            node.own += (item,)
        _sum_up(self._root)

    def covering(self, segments: tuple[str, ...]) -> tuple[Item, ...]:
        """Items of every url that is a prefix of the path, shorter urls first."""
        node, place = self.descend(segments)
        if node.any is None or place == len(segments):
            return node.so_far
        return (*node.so_far, *self._branching(node, segments[place:]))

    def descend(self, segments: tuple[str, ...]) -> tuple[TreeNode[Item], int]:
        """The last node on the way down before one branches, and how many segments lead there."""
        node = self._root
        place = 0
        for segment in segments:
            if node.any is not None or node.children is None:
                break
            child = node.children.get(segment)
            if child is None:
                break
            node = child
            place += 1
        return node, place

    def within(self, words: frozenset[str]) -> tuple[Item, ...]:
        """Items of every url whose own words are all among these, in whatever order."""
        found: list[Item] = []
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            found += node.own
            if node.any is not None:
                waiting.append(node.any)
            if node.children is not None:
                waiting += [node.children[word] for word in words & node.children.keys()]
        return tuple(found)

    def _branching(self, node: TreeNode[Item], segments: tuple[str, ...]) -> Iterable[Item]:
        """Where a segment may be its own word or anything, both ways are gone."""
        frontier = [node]
        for segment in segments:
            following = []
            for node in frontier:
                if node.any is not None:
                    following.append(node.any)
                if node.children is not None and segment in node.children:
                    following.append(node.children[segment])
            for node in following:
                yield from node.own
            frontier = following


def _descend(node: TreeNode[Item], segment: str | None) -> TreeNode[Item]:
    if segment is None:
        node.any = node.any or TreeNode()
        return node.any
    if node.children is None:
        node.children = {}
    child = node.children.get(segment)
    if child is None:
        child = node.children[segment] = TreeNode()
    return child


def _sum_up(root: TreeNode[Item]) -> None:
    waiting = [(root, root.so_far)]
    while waiting:
        node, above = waiting.pop()
        node.so_far = above + node.own  # the same tuple, where one of them is empty
        below = list(node.children.values()) if node.children else []
        waiting += [(child, node.so_far) for child in below]
