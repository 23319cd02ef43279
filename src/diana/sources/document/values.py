"""What single fields may say: a url, a status, a body."""

from __future__ import annotations

import json
import re
from typing import Any

from diana.core.actor import CODE
from diana.core.duration import micros_from_spelling
from diana.core.errors import ConfigError, shown
from diana.core.lease import LONGEST_US, SHORTEST_US
from diana.core.path import PathReading
from diana.core.plugins import algorithm_from_spelling
from diana.core.rule import Body
from diana.core.url import url_from_spelling
from diana.sources.document.reader import (
    choice,
    duration,
    in_quotes,
    mistake,
    placed,
    scalar,
    text,
)
from diana.sources.document.yaml_tree import Mapping, Node, Scalar

_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
STATUS = re.compile(r"[2-5][0-9]{2}")


def algorithm(node: Node, path: str) -> Any:
    return algorithm_from_spelling(text(node, path))


def scope(node: Node, path: str) -> str:
    return str(choice("local", "global", "leased", "divided")(node, path))


def url_pattern(node: Node, path: str) -> Any:
    return url_from_spelling(text(node, path))


def mount(node: Node, path: str) -> PathReading:
    """A prefix under which the same handlers are reached."""
    url = url_from_spelling(text(node, path))
    words = tuple(segment for segment in url.segments if segment is not None)
    if not words or len(words) < len(url.segments):
        raise ConfigError(
            f"{shown(url.spelling)} is no prefix; write one such as /api, in plain words"
        )
    return words


def namespace(node: Node, path: str) -> str:
    word = text(node, path)
    if not _NAMESPACE.fullmatch(word):
        raise ConfigError(
            f"{word!r} is no namespace; write up to 64 letters, digits, dots, dashes or underscores"
        )
    return word


def budget(node: Node, path: str) -> int:
    """How long a request may wait for the store, in µs."""
    micros = micros_from_spelling(str(duration(node, path)))
    if not 1_000 <= micros <= 10_000_000:
        raise ConfigError("no request should wait so for a store; write from 1ms to 10s")
    return micros


def percent(node: Node, path: str) -> int:
    """`10%`."""
    word = text(node, path)
    number = word.removesuffix("%").strip()
    if not number.isascii() or not number.isdecimal() or not 1 <= int(number[:4]) <= 100:
        raise ConfigError(f"{shown(word)} is no share of a limit; write from 1% to 100%")
    return int(number)


def lease_ttl(node: Node, path: str) -> int:
    """For how long permits are held, in µs."""
    micros = micros_from_spelling(str(duration(node, path)))
    if not SHORTEST_US <= micros <= LONGEST_US:
        raise ConfigError("permits are held for a moment; write from 100ms to 60s")
    return micros


def identity_place(node: Node, path: str) -> str:
    """Where an account, a device or a tier is found: an actor, or `code`."""
    word = text(node, path)
    return CODE if word.strip().lower() == CODE else word


def rule_name(node: Node, path: str) -> str:
    name = text(node, path)
    if len(name) > 100 or not name.isprintable():
        raise ConfigError("a name is at most 100 characters, without line breaks; write another")
    return name


def status(node: Node, _: str) -> int:
    word = scalar(node, "a status", "write one from 200 to 599, such as 429")
    if not word.plain and STATUS.fullmatch(word.text):
        raise in_quotes("status", word.text)
    if not (word.plain and STATUS.fullmatch(word.text)):
        raise ConfigError(
            f"{word.text[:40]} is no status for an answer; write one from 200 to 599, such as 429"
        )
    return int(word.text)


def answer_body(node: Node, path: str) -> Body:
    if isinstance(node, Scalar):
        return Body(text=text(node, path))
    if not isinstance(node, Mapping):
        raise ConfigError("a list where a body should be; write a text, or text:, html: and json:")
    kinds: dict[str, str] = {}
    for key, value in node.pairs:
        kind = key.text.lower()
        if kind not in Body._fields:
            raise mistake(
                key, path, f"{shown(key.text)} is no kind of body; write text, html or json"
            )
        if kind in kinds:
            raise mistake(key, path, f"{key.text!r} stands here twice; keep one")
        try:
            kinds[kind] = _json(value) if kind == "json" else text(value, path)
        except ConfigError as error:
            raise placed(error, value, f"{path}.{kind}") from None
    return Body(**kinds)


def _json(node: Node) -> str:
    """JSON as a text; it is sent as it is written."""
    word = scalar(node, "JSON", """write it as a text: json: '{"error": "later"}'""").text
    try:
        json.loads(word, parse_constant=_no_constant, parse_int=str)
    except (ValueError, RecursionError) as error:
        said = "too deep" if isinstance(error, RecursionError) else error
        raise ConfigError(f"this is no JSON: {said}; write it as JSON") from None
    return word


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not allowed")
