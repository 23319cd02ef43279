"""Text that is safe to print and to log, whatever a server or a client put into it."""

from __future__ import annotations

LONGEST = 2_000
"""A message that quotes a server's reply is cut after so many characters: a reply may be as long as the server likes."""


def plain(text: str, keep: str = "") -> str:
    r"""`text` with an escape (`\x1b`) for each character that could control a terminal, end a line of a log or hide other text.

    These are the control characters (C0, C1, DEL), line and paragraph separators, bidirectional overrides and other format characters,
    and surrogates. Letters of all languages stay. `keep` names characters that stay as well, such as "\n".
    """
    if text.isprintable():
        return text
    return "".join([sign if sign.isprintable() or sign in keep else _escape(sign) for sign in text])


def quotable(text: str) -> str:
    """One line of at most LONGEST characters, for a message that quotes what a server sent."""
    return plain(text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}...")


def _escape(sign: str) -> str:
    return sign.encode("unicode_escape").decode("ascii")
