"""What the app finds of Diana in a request: the verdict, and for limits on routes the middleware and what it was charged so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from diana.core.errors import ConfigError, shown
from diana.middleware.answer import Fields

VERDICT = "diana.verdict"
"""In a scope and an environ: what the rules said. A limit on the route puts its own verdict in its place."""
SCOPE_VERDICT = "diana"
"""The same in a scope. An environ has dots in the names of what is no text (PEP 3333)."""
MIDDLEWARE = "diana.middleware"
"""The middleware whose store and settings limits on routes share."""

App = Callable[..., Any]
Denied = Callable[[Any, Any], Any]
"""The application's own answer to a denied request, from the request and the verdict; None: Diana's."""


def checked_denied(denied: Denied | None) -> Denied | None:
    if denied is not None and not callable(denied):
        raise ConfigError(f"denied is {denied!r}; give a function of the request and the verdict")
    return denied


def checked_answer(own: Any) -> App | None:
    """What `denied` has returned for ASGI and WSGI: an app that answers, or None."""
    if own is not None and not callable(own):
        raise ConfigError(
            f"denied= must return a response, such as Response(...) of the framework, or None (got {shown(own)}); "
            "write return JSONResponse({...}, 429) or the like"
        )
    return cast("App | None", own)


def beside_own_words(fields: Fields) -> Fields:
    """Header lines of a denial that go with the application's own answer, which has a body of its own."""
    return [field for field in fields if not field[0].startswith(b"content-")]
