"""The hash in C is the published one."""

from __future__ import annotations

import pytest

from diana import _native

VECTORS = [
    "a3817f04ba25a8e66df67214c7550293",
    "da87c1d86b99af44347659119b22fc45",
    "8177228da4a45dc7fca38bdef60affe4",
]
"""SipHash-2-4 with 128 bits of the first bytes 00 01 02…, under the secret 00 01 … 0f."""


@pytest.mark.parametrize(("length", "digest"), list(enumerate(VECTORS)))
def test_the_published_vectors(length: int, digest: str) -> None:
    assert _native.siphash(bytes(range(16)), bytes(range(length))).hex() == digest


def test_every_byte_counts() -> None:
    secret, texts = bytes(16), [b"a" * length for length in range(64)]
    texts += [b"a" * place + b"b" + b"a" * (63 - place) for place in range(64)]
    assert len({_native.siphash(secret, text) for text in texts}) == len(texts)
    assert _native.siphash(b"x" * 16, b"a") != _native.siphash(b"y" * 16, b"a")
