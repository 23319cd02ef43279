"""The limit of each view that a decorator stands on: one decorator may stand on several, each counts by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from inspect import ismethod
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import ref

from diana.core.errors import ConfigError
from diana.stores import open_store
from diana.web.route_limit import RouteLimit

LIMITS = "__diana_limits__"
"""On a decorated view: how many limits it has."""

LONGEST_NAME = 64
"""A rule's is at most 100 characters, and more than one view's name may be in it."""

T = TypeVar("T")
Kind = TypeVar("Kind", bound=RouteLimit)


_taken: set[str] = set()
_lock = Lock()


def _own_name(counter: str) -> str:
    """Closures and factories make several views of one name, in the same order in every process; they are numbered."""
    own, number = counter, 1
    with _lock:
        while own in _taken:
            number += 1
            own = f"{counter} #{number}"
        _taken.add(own)
    return own


class ViewLimits(Generic[Kind]):
    """A limit counts under the view's module and name, which other processes know as well; or under `name`, with all of that name."""

    def __init__(self, kind: type[Kind], limit: str, options: dict[str, Any]) -> None:
        if callable(limit) and options.get("name") is None:
            raise ConfigError(
                '@rate_limit needs a limit; write @rate_limit("100/minute"), or, if a function says what the limit is, '
                "also a name: @rate_limit(limit_of, name=...)"
            )
        self._kind = kind
        self._limit = limit
        self._options = options
        self._views: dict[str, list[tuple[Callable[[], Any], Kind]]] = {}
        self._counters: dict[str, Kind] = {}
        self._lock = Lock()
        kind(limit, **{**options, "store": None})  # what is wrong is wrong at once
        if options.get("store") is not None:
            self._options = {**options, "store": open_store(options["store"])}

    def of(self, view: Any) -> Kind:
        """The same for the same view: Django's method_decorator decorates anew for every request.

        A view that is gone leaves its limit to the next one of its name: a function that is made and decorated during each request
        does not begin a new counter each time.
        """
        if self._options.get("name") is not None:
            return self.under("")
        counter = name_of_view(view)
        before = getattr(view, LIMITS, 0)
        if before:
            counter = f"{counter} {before + 1}"
        _, function = _behind(view)
        with self._lock:
            alike = self._views.setdefault(counter, [])
            for wanted in (function, None):
                for place, (seen, limit) in enumerate(alike):
                    if seen() is wanted:
                        alike[place] = (_reference(function), limit)
                        return limit
            made = self._kind(self._limit, counter=_own_name(counter), **self._options)
            alike.append((_reference(function), made))
            return made

    def under(self, counter: str) -> Kind:
        """For views that are known only when a request comes: their framework numbers those of one name."""
        if self._options.get("name") is not None:
            counter = ""
        found = self._counters.get(counter)
        if found is None:
            with self._lock:
                found = self._counters.get(counter)
                if found is None:
                    own = _own_name(counter) if counter else None
                    made = self._kind(self._limit, counter=own, **self._options)
                    found = self._counters[counter] = made
        return found


def marked(decorated: T) -> T:
    """Two limits of one view are two counters, however alike they are."""
    setattr(decorated, LIMITS, getattr(decorated, LIMITS, 0) + 1)
    return decorated


def name_of_view(view: Any) -> str:
    """`shop.views.Login.post`, cut if it is very long."""
    return cut(_whole_name(view), LONGEST_NAME)


def cut(name: str, longest: int) -> str:
    """The end of a long name, with a digest that tells it from others that end so."""
    if len(name) <= longest:
        return name
    digest = sha256(name.encode()).hexdigest()[:16]
    return f"{name[-(longest - len(digest) - 1) :]} {digest}"


def view_identity(view: Any) -> Any:
    """Equal for what counts as one view: also for its bound methods, which are made anew for every request."""
    return _behind(view)


def _behind(view: Any) -> tuple[type | None, Any]:
    """The function or class that a view is, and, if it is a method, whose.

    The wrappers around a bound method are looked through: Django's method_decorator makes them anew for every request.
    """
    found = view
    while found is not None:
        if isinstance(
            found, partial
        ):  # which may have __wrapped__, too, but that no longer says whose method it is
            found = found.func
            if found is not None and not ismethod(found) and isinstance(view, partial):
                view = found
        elif ismethod(found):
            owner = found.__self__
            return (owner if isinstance(owner, type) else type(owner)), found.__func__
        else:
            found = None if isinstance(found, type) else getattr(found, "__wrapped__", None)
    return None, getattr(view, "view_class", None) or view


def _whole_name(view: Any) -> str:
    """Also of a class, of a bound method, and of what a class's `as_view` gives."""
    owner, view = _behind(view)
    if owner is not None:
        return f"{owner.__module__}.{owner.__qualname__}.{view.__name__}"
    named: str = getattr(view, "__qualname__", None) or getattr(view, "name", None) or ""
    named = named or type(view).__qualname__
    # A name that was given later, as REST framework's api_view does, is the view's own.
    own = getattr(view, "__name__", None)
    around, dot, last = named.rpartition(".")
    if own is not None and own != last:
        named = f"{around}{dot}{own}"
    return f"{view.__module__}.{named}"


def _reference(function: Any) -> Callable[[], Any]:
    try:
        return ref(function)
    except TypeError:
        return lambda: function
