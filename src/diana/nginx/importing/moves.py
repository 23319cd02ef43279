"""Directives by which nginx serves a request in another location than that of its path, or answers it before it is counted."""

from __future__ import annotations

from collections.abc import Iterator

from diana.nginx.importing.charges import charges_of_location
from diana.nginx.importing.configuration import Directive
from diana.nginx.importing.notes import Notes
from diana.nginx.importing.servers import Server

_ONWARD = ("try_files", "index", "error_page", "auth_request", "mirror", "post_action")
_OWN_LIMITS = ("limit_req", "limit_conn")
_REDIRECTS = ("redirect", "permanent")


def note_moves(server: Server, notes: Notes) -> None:
    locations = [server.root, *server.root.within()]
    for location in locations:
        own = any(True for _ in location.directive.each(*_OWN_LIMITS))
        if location.is_named and location.limits != server.root.limits:
            text = f"{location} is not translated: the limits of the location that a request comes from hold here"
            notes.add(location.directive, text)
        elif own and location.is_internal:
            text = f"{location} is not translated: no path that is sent leads to it"
            notes.add(location.directive, text)
    charges = {frozenset(charges_of_location(one, server)) for one in locations}
    kinds = {frozenset(one.limit.zone.kind for one in some) for some in charges}
    if not any(charges):
        return
    keys = [charge.key for some in charges for charge in some]
    may_be_empty = any(key.missing == "skip" or key.allow or key.only for key in keys)
    counts_later = len(kinds) > 1 or (len(charges) > 1 and may_be_empty)
    """What is not counted in the first location may be counted in the next one."""
    for one in server.directive.within():
        if one.name == "rewrite" and (len(charges) > 1 or _is_redirect(one)):
            notes.add(one, "rewrite is not translated: the path that is sent decides here")
        elif one.name == "if" and any(inner.name == "return" for inner in one.block):
            notes.add(one, "if is not translated: requests that it answers are counted here")
        elif one.name in _ONWARD and counts_later:
            text = f"{one.name} may move a request to a location with other limits; the path that is sent decides here"
            notes.add(one, text)


def _is_redirect(rewrite: Directive) -> bool:
    words = rewrite.args[1:]
    return any(
        word in _REDIRECTS or word.startswith(("http://", "https://", "$scheme")) for word in words
    )


def note_addresses(http: Directive, notes: Notes) -> None:
    """If a zone counts by address, or a list has addresses."""
    for one in _all(http, "listen"):
        if "[" in "".join(one.args[:1]):
            notes.add(one, "IPv6 addresses are counted by their /64 network, not one by one")
    for one in _all(http, "set_real_ip_from"):
        text = f"{one.name} is not translated: write trusted_proxies under identity, so that addresses are those of clients"
        notes.add(one, text)


def note_headers(http: Directive, notes: Notes) -> None:
    """If a zone counts by a header."""
    for one in _all(http, "underscores_in_headers"):
        if one.args == ("on",):
            text = "underscores_in_headers: X_Tenant and X-Tenant are one header there; here a header with an underscore is another one"
            notes.add(one, text)


def note_paths(http: Directive, notes: Notes) -> None:
    """If locations have limits of their own."""
    for one in _all(http, "merge_slashes"):
        if one.args == ("off",):
            notes.add(one, "merge_slashes off is not translated: a // in a path is one slash here")


def _all(http: Directive, *names: str) -> Iterator[Directive]:
    return (one for one in http.within() if one.name in names)
