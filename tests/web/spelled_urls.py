"""The same for Django, by paths and by regular expressions."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path, re_path


def reached(name: str) -> Any:
    def handle(request: HttpRequest, **_: Any) -> HttpResponse:
        return HttpResponse(f"reached {name}")

    return handle


urlpatterns = [
    path("login", reached("login")),
    path("search/<path:rest>", reached("search")),
    path("find/<str:term>/results", reached("results")),
    re_path("^find/(?P<term>[^/]*)/results$", reached("results")),
    re_path("^users/(?P<id>[^/]+)$", reached("user")),
    path("a/b/<x>/c", reached("deep")),
    re_path("^export$", reached("export")),
]
