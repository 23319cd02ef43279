"""Which body a client likes best."""

from __future__ import annotations

import pytest

from diana.responses.preferred_kind import HTML, JSON, TEXT, preferred_kind

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ([], JSON),
        (["*/*"], JSON),
        ([BROWSER], HTML),
        (["text/plain"], TEXT),
        (["text/*"], TEXT),
        (["text/*;q=0.5, text/html"], HTML),
        (["application/json"], JSON),
        (["application/problem+json, text/html"], JSON),
        (["text/html, application/json;q=0.9"], HTML),
        (["TEXT/HTML"], HTML),
        (["text/html;q=0, */*"], JSON),
        (["application/*;q=0.1, text/html;q=0.05, text/plain;q=0.2"], TEXT),
        (["*/*, application/json;q=0, application/problem+json;q=0"], TEXT),
        (["text/html; q=1.000"], HTML),
        (["text/html ; level=1 ; Q=0.7"], HTML),
        (["application/json;q=0.3", "text/html;q=0.9"], HTML),
        (["image/png"], JSON),
        (["text/html;q=2"], JSON),
        (["text/html;q=-1"], JSON),
        (["text/html;q=NaN"], JSON),
        (["text/html;q="], JSON),
        (["text/html;q=0.1234"], JSON),
        (["text/html, nonsense"], JSON),
        (["text/html/x"], JSON),
        ([", ,"], JSON),
        (["\x00\x1b[31m"], JSON),
        (["text/html," * 1_000], JSON),
        (["a" * 1_000_000], JSON),
    ],
)
def test_the_kind_for_an_accept_header(accept: list[str], kind: str) -> None:
    assert preferred_kind(accept, (JSON, TEXT, HTML)) == kind


def test_of_what_is_at_hand() -> None:
    assert preferred_kind(["text/html"], (TEXT,)) == TEXT
    assert preferred_kind(["application/json"], (TEXT, HTML)) == TEXT
    assert preferred_kind([BROWSER], (TEXT, HTML)) == HTML
