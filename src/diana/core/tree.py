"""Which urls cover a path? By a tree of segments, so that ten thousand urls cost what ten do."""

from __future__ import annotations

from typing import Generic, TypeVar

from diana.core.url import Url

Item = TypeVar("Item")


class Node(Generic[Item]):
    __slots__ = ("any", "children", "items")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.children: dict[str, Node[Item]] = {}
        self.any: Node[Item] | None = None


class SegmentTree(Generic[Item]):
    def __init__(self) -> None:
        self.root: Node[Item] = Node()

    def add(self, url: Url, item: Item) -> None:
        node = self.root
        for segment in url.segments:
            if segment is None:
                node.any = node.any or Node()
                node = node.any
            else:
                node = node.children.setdefault(segment, Node())
        node.items.append(item)

    def covering(self, segments: tuple[str, ...]) -> list[Item]:
        """Items of every url that is a prefix of the path, shorter urls first."""
        node = self.root
        found = list(node.items)
        for place, segment in enumerate(segments):
            if node.any is not None:
                self._branch([node], segments[place:], found)
                return found
            child = node.children.get(segment)
            if child is None:
                return found
            found += child.items
            node = child
        return found

    def _branch(
        self, frontier: list[Node[Item]], segments: tuple[str, ...], found: list[Item]
    ) -> None:
        """Where a segment may be its own word or anything, both ways are gone."""
        for segment in segments:
            following = []
            for node in frontier:
                if node.any is not None:
                    following.append(node.any)
                child = node.children.get(segment)
                if child is not None:
                    following.append(child)
            for node in following:
                found += node.items
            frontier = following
            if not frontier:
                return
