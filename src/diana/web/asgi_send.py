"""`send` as an app gets it: it adds header lines to the one message that begins the response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from diana.responses.denial_response import Fields
from diana.web.asgi_types import Message, Send
from diana.web.request_charges import (
    Admission,
    Charged,
    RouteDenial,
)

BEGINS_RESPONSE = frozenset(
    {"http.response.start", "websocket.accept", "websocket.http.response.start"}
)
SINGLE = b"x-ratelimit-"
"""The older fields: one number each."""


AnswerRoute = Callable[[Charged, RouteDenial, Send], Awaitable[bool]]


def send_admitted(
    fields: Fields, send: Send, admission: Admission, charged: Charged, answer: AnswerRoute | None
) -> Send:
    """`send` for a request that the middleware allowed. If a limit on its route denies it, the header lines of the middleware are no
    longer true and are left out, and `answer` may replace the response of the framework."""
    single = bool(fields) and fields[-1][0].startswith(SINGLE)
    is_replaced = False

    async def send_own(route: RouteDenial, message: Message) -> None:
        nonlocal is_replaced
        admission.route_denial = None  # answered
        is_replaced = answer is not None and await answer(charged, route, send)
        if not is_replaced:
            await send(message)

    def sending(message: Message) -> Awaitable[None]:
        if is_replaced:
            return _nothing()
        if message["type"] in BEGINS_RESPONSE:
            if admission.report is not None:
                admission.report.send()
            if not charged.is_refunded:
                if fields:
                    message = _with_fields(message, fields, single)
            elif answer is not None and admission.route_denial is not None:
                return send_own(admission.route_denial, message)
        return send(message)

    return sending


async def _nothing() -> None:
    """The rest of a response that is replaced."""


def send_with(fields: Fields, send: Send) -> Send:
    """`send` that adds header lines where the response begins."""
    single = fields[-1][0].startswith(SINGLE)

    def adding(message: Message) -> Awaitable[None]:
        if message["type"] in BEGINS_RESPONSE:
            message = _with_fields(message, fields, single)
        return send(message)

    return adding


def _with_fields(message: Message, fields: Fields, single: bool) -> Message:
    """The app's own lines stay: `RateLimit` and its policy are lists, and lines of a list add up. Of the older fields, which are single
    numbers, the app's own are the only ones."""
    own = message.get("headers") or ()
    added = not_twice(fields, own) if single else fields
    # Not in place: an app may send the same message again.
    return {**message, "headers": [*own, *added]}


def send_beside(fields: Fields, send: Send) -> Send:
    """`send` that adds the header lines that an answer of the application's own to a denied request lacks."""

    def adding(message: Message) -> Awaitable[None]:
        if message["type"] in BEGINS_RESPONSE:
            own = message.get("headers") or ()
            names = {name.lower() for name, _ in own}
            added = [field for field in fields if field[0] not in names]
            message = {**message, "headers": [*own, *added]}
        return send(message)

    return adding


def not_twice(fields: Fields, own: Any) -> Fields:
    if any(name.lower().startswith(SINGLE) for name, _ in own):
        return [field for field in fields if not field[0].startswith(SINGLE)]
    return fields
