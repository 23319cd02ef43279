"""Which urls cover a path? By a tree of segments, so that ten thousand urls cost what ten do.

Every node knows all items on the way down to it, so where no `*` or `{name}` branches off, the answer is the last node's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from diana.core.url import Url

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
