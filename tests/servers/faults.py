"""What can happen to an answer on its way back.

A fault is given each piece of an answer, with the seconds it has waited for its turn, and yields what the client gets, and when.
It waits by `pause`, which ends early once another fault is chosen: what was held back then goes out at once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from random import Random
from typing import NamedTuple

Pause = Callable[[float | None], Awaitable[None]]
"""Wait so many seconds; None: until another fault is chosen."""
Answer = Callable[[bytes, float, Pause], AsyncGenerator[bytes, None]]

JUNK = b"\x00\xffHTTP/1.1 400 Bad Request\r\n\r\n"


class Fault(NamedTuple):
    answer: Answer
    reaches_server: bool = True
    """Whether what the client asks goes on to the server."""


def passing() -> Fault:
    async def at_once(piece: bytes, waited: float, pause: Pause) -> AsyncGenerator[bytes, None]:
        yield piece

    return Fault(at_once)


def swallowing(reaches_server: bool) -> Fault:
    async def never(piece: bytes, waited: float, pause: Pause) -> AsyncGenerator[bytes, None]:
        if False:
            yield piece

    return Fault(never, reaches_server)


def delaying(seconds: float) -> Fault:
    async def late(piece: bytes, waited: float, pause: Pause) -> AsyncGenerator[bytes, None]:
        await pause(seconds - waited)
        yield piece

    return Fault(late)


def dripping(seconds_per_byte: float) -> Fault:
    async def in_drops(piece: bytes, waited: float, pause: Pause) -> AsyncGenerator[bytes, None]:
        for byte in piece:
            await pause(seconds_per_byte)
            yield bytes([byte])

    return Fault(in_drops)


def spoiling(junk: bytes) -> Fault:
    async def spoilt(piece: bytes, waited: float, pause: Pause) -> AsyncGenerator[bytes, None]:
        yield junk

    return Fault(spoilt)


def halving(first: int) -> Fault:
    async def in_part(piece: bytes, waited: float, pause: Pause) -> AsyncGenerator[bytes, None]:
        yield piece[:first]
        await pause(None)
        yield piece[first:]

    return Fault(in_part)


def doubling() -> Fault:
    async def twice(piece: bytes, waited: float, pause: Pause) -> AsyncGenerator[bytes, None]:
        yield piece + piece

    return Fault(twice)


def cutting() -> Fault:
    async def broken(piece: bytes, waited: float, pause: Pause) -> AsyncGenerator[bytes, None]:
        yield piece[: len(piece) // 2]
        raise ConnectionResetError

    return Fault(broken)


def sometimes(fault: Fault, share: float, seed: int) -> Fault:
    """For that share of the pieces, chosen at random; the others pass."""
    random = Random(seed)

    async def now_and_then(
        piece: bytes, waited: float, pause: Pause
    ) -> AsyncGenerator[bytes, None]:
        chosen = fault.answer if random.random() < share else passing().answer
        async for part in chosen(piece, waited, pause):
            yield part

    return Fault(now_and_then)
