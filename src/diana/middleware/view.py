"""The limit of each view that a decorator stands on: one decorator may stand on several, each counts by itself."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import Any, Generic, TypeVar

from diana.middleware.route import RouteLimit
from diana.stores import open_store

LIMITS = "__diana_limits__"
"""On a decorated view: how many limits it has."""

LONGEST_NAME = 64
"""A rule's is at most 100 characters, and more than one view's name may be in it."""

T = TypeVar("T")
Kind = TypeVar("Kind", bound=RouteLimit)


_views: Counter[str] = Counter()
"""Views by name. Closures and factories make several of one name, in the same order in every process."""


class ViewLimits(Generic[Kind]):
    """A limit counts under the view's module and name, which other processes know as well; or under `name`, with all of that name."""

    def __init__(self, kind: type[Kind], limit: str, options: dict[str, Any]) -> None:
        self._kind = kind
        self._limit = limit
        self._options = options
        self._views: dict[str, Kind] = {}
        kind(limit, **{**options, "store": None})  # what is wrong is wrong at once
        if options.get("store") is not None:
            self._options = {**options, "store": open_store(options["store"])}

    def of(self, view: Any) -> Kind:
        """The same for the same view: Django's method_decorator decorates anew for every request."""
        counter = name_of_view(view)
        before = getattr(view, LIMITS, 0)
        if before:
            counter = f"{counter} {before + 1}"
        found = self._views.get(counter)
        if found is None:
            _views[counter] += 1
            alike = _views[counter]
            own = f"{counter} #{alike}" if alike > 1 else counter
            made = self._kind(self._limit, counter=own, **self._options)
            found = self._views.setdefault(counter, made)
        return found


def marked(decorated: T) -> T:
    """Two limits of one view are two counters, however alike they are."""
    setattr(decorated, LIMITS, getattr(decorated, LIMITS, 0) + 1)
    return decorated


def name_of_view(view: Any) -> str:
    """`shop.views.Login.post`, cut if it is very long."""
    name = _whole_name(view)
    if len(name) <= LONGEST_NAME:
        return name
    digest = sha256(name.encode()).hexdigest()[:16]
    return f"{name[-(LONGEST_NAME - len(digest) - 1) :]} {digest}"


def _whole_name(view: Any) -> str:
    """Also of a class, of a bound method, and of what a class's `as_view` gives."""
    bound = getattr(view, "func", view)  # of a partial
    owner = getattr(bound, "__self__", None)
    if owner is not None:
        kind = owner if isinstance(owner, type) else type(owner)
        return f"{kind.__module__}.{kind.__qualname__}.{bound.__name__}"
    view = getattr(view, "view_class", None) or view
    named = getattr(view, "__qualname__", None) or getattr(view, "name", None)
    return f"{view.__module__}.{named or type(view).__qualname__}"
