"""Limits that run before FastAPI reads the body: `APIRouter(route_class=LimitedRoute)`.

FastAPI reads, parses and validates the body of a request, and only then runs dependencies: a request that a `RateLimit` denies has cost
its body by then, and one whose body is not valid is never counted. A route of this class runs the limits declared on it first.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from diana.middleware.answer import Fields
from diana.middleware.fastapi import ENFORCED, RateLimit


class LimitedRoute(APIRoute):
    """A route whose limits run before its body is read.

    Those on the route and on its own router: `dependencies=[Depends(RateLimit(…))]` and `@limited(…)`. A limit whose `actor` is a function
    stays where it is, if it stands behind other dependencies: it may count by what they find.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        limits = self._early_limits()
        if not limits:
            return handle

        async def limit_and_handle(request: Request) -> Response:
            overridden = getattr(request.app, "dependency_overrides", {})
            enforced: dict[RateLimit, Fields] = request.scope.setdefault(ENFORCED, {})
            for limit in limits:
                if limit not in overridden and limit not in enforced:
                    enforced[limit] = await limit.enforce(request)
            return await handle(request)

        return limit_and_handle

    def _early_limits(self) -> list[RateLimit]:
        early: list[RateLimit] = []
        others_before = False
        for dependency in self.dependant.dependencies:
            if isinstance(dependency.call, RateLimit):
                if dependency.call.needs_only_the_request or not others_before:
                    early.append(dependency.call)
            else:
                others_before = True
        return early
