"""Strict readers of fields: every error is found, has its position, and says what to write instead."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, NamedTuple

from diana.core.actor import CODE
from diana.core.duration import micros_from_spelling
from diana.core.errors import ConfigError, shown
from diana.core.path_readings import PathReading
from diana.core.rule import Body, FilePosition
from diana.core.settings import LONGEST_US, SHORTEST_US
from diana.core.url_pattern import url_from_spelling
from diana.rules.document.yaml_tree import Mapping, Node, Scalar, Sequence, SourceMap
from diana.runtime.entry_points import algorithm_from_spelling

LARGEST_NUMBER = 10**12
MOST_MISTAKES = 100

_NUMBER = re.compile(r"[+-]?[0-9][0-9_,.:eExXoO+-]*|[+-]?\.(?:nan|inf)", re.IGNORECASE)
_WHOLE = re.compile(r"0|[1-9][0-9]{0,40}")


class Field(NamedTuple):
    """A value and where it stands."""

    value: Any
    position: FilePosition


Read = Callable[[Node, str], Any]


class ErrorCollector:
    """All mistakes of a file, in the order of its lines; of very many, the first hundred."""

    def __init__(self, origin: SourceMap) -> None:
        self._origin = origin
        self._found: dict[tuple[int | None, int | None, str], ConfigError] = {}

    @property
    def any(self) -> bool:
        return bool(self._found)

    @property
    def full(self) -> bool:
        return len(self._found) >= MOST_MISTAKES

    def add(self, error: ConfigError) -> None:
        """A wrong default would otherwise be told once for every rule."""
        if not self.full:
            self._found.setdefault((error.line, error.column, error.message), error)

    def raise_any(self) -> None:
        if self._found:
            raise all_at_once(self._origin, self._found.values())


def all_at_once(origin: SourceMap, errors: Iterable[ConfigError]) -> ConfigError:
    """One error that says them all; it stands where the first of them stands."""
    lines, found = [], []
    for error in sorted(errors, key=lambda error: (error.line or 0, error.column or 0)):
        file, line = origin.spot(error.line)
        where = f"{error.path}: " if error.path else ""
        spot = f":{line}:{error.column}" if line else ""
        lines.append(f"{file}{spot}: {where}{error.message}")
        column = error.column if line else None
        found.append(
            ConfigError(error.message, line=line, column=column, path=error.path, file=file)
        )
    first = found[0]
    whole = ConfigError(
        "\n".join(lines), line=first.line, column=first.column, path=first.path, file=first.file
    )
    whole.errors = tuple(found)
    return whole


def mistake(node: Node | Scalar, path: str, message: str) -> ConfigError:
    return ConfigError(message, line=node.line, column=node.column, path=path)


def fields(
    node: Mapping, path: str, readers: dict[str, Read], mistakes: ErrorCollector
) -> dict[str, Field]:
    """The known fields of a mapping; unknown and repeated ones are mistakes."""
    found: dict[str, Field] = {}
    seen: dict[str, Scalar] = {}
    for key, value in node.pairs:
        if mistakes.full:
            break
        name = key.text.lower()
        read = readers.get(name)
        word = name if read is not None or _is_short(name) else shown(name)
        here = f"{path}.{word}" if path else word
        if name in seen:
            first = seen[name]
            there = f"in line {first.line}" if first.line else "beside it"
            said = f"{shown(key.text)} stands here and {there} as {shown(first.text)}; keep one"
            mistakes.add(mistake(key, here, said))
        elif key.text == "<<":
            mistakes.add(mistake(key, here, "there is a merge (<<); write the fields out"))
        elif read is None:
            mistakes.add(mistake(key, here, unknown(key.text, readers)))
        else:
            try:
                found[name] = Field(read(value, here), FilePosition(value.line, value.column, here))
            except ConfigError as error:
                mistakes.add(placed(error, value, here))
        seen.setdefault(name, key)
    return found


def _is_short(name: str) -> bool:
    return name.isprintable() and len(name) <= 40


def placed(error: ConfigError, node: Node | FilePosition, path: str) -> ConfigError:
    """An error that does not know where it stands, told so."""
    if error.line is not None:
        return error
    return ConfigError(error.message, line=node.line, column=node.column, path=path)


def unknown(word: str, known: dict[str, Read]) -> str:
    names = [name for name, read in known.items() if not isinstance(read, UnbuiltField)]
    near = get_close_matches(word.lower()[:40], names, 1)
    hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(names)}"
    return f"{shown(word)} is no field here; {hint}"


def mapping(node: Node, what: str) -> Mapping:
    if isinstance(node, Mapping):
        return node
    empty = isinstance(node, Scalar) and not node.text
    found = "nothing" if empty else _shown(node)
    raise ConfigError(f"{found} where {what} should be; write its fields as name: value")


def text(node: Node, _: str) -> str:
    return scalar(node, "a text", "write one value").text


def scalar(node: Node, what: str, advice: str) -> Scalar:
    """One value, not empty."""
    if not isinstance(node, Scalar):
        raise ConfigError(f"{_shown(node)} where {what} should be; {advice}")
    if not node.text.strip():
        raise ConfigError("there is no value; write one, or remove the field")
    return node


def whole(smallest: int, largest: int = LARGEST_NUMBER) -> Read:
    """A whole number, written in digits."""

    def read(node: Node, path: str) -> int:
        word = scalar(node, "a number", "write digits such as 10")
        if not word.plain and _WHOLE.fullmatch(word.text):
            raise in_quotes(name_in(path), word.text)
        number = int(word.text) if _WHOLE.fullmatch(word.text) else -1
        if number > largest:
            raise ConfigError(f"{_shown(node)} is too large; write at most {largest}")
        if number < smallest:
            raise ConfigError(
                f"{_shown(node)} is no whole number from {smallest}; write digits such as 10"
            )
        return number

    return read


def in_quotes(field: str, number: str) -> ConfigError:
    return ConfigError(
        f"{field} must be a number (got {shown(number)}, a text in quotes); write {field}: {number}"
    )


def name_in(path: str) -> str:
    """The field that a path ends with."""
    return path.rpartition(".")[2]


def flag(node: Node, path: str) -> bool:
    word = text(node, path).lower()
    if word not in ("true", "false"):
        raise ConfigError(f"{_shown(node)} is neither true nor false; write one of them")
    return word == "true"


def natural(node: Node, path: str) -> Any:
    """What a plug-in's own option says: a whole number, true or false, or a text."""
    word = text(node, path)
    if not (isinstance(node, Scalar) and node.plain):
        return word
    if _WHOLE.fullmatch(word):
        return int(word)
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if _NUMBER.fullmatch(word) and not _is_duration(word):
        raise ConfigError(f"{_shown(node)} is no whole number; write digits such as 10")
    return word


def choice(*words: str) -> Read:
    def read(node: Node, path: str) -> str:
        word = text(node, path).lower()
        if word not in words:
            near = get_close_matches(word, words, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(f"{_shown(node)} is unknown; {hint}write one of {', '.join(words)}")
        return word

    return read


def duration(node: Node, path: str) -> str:
    word = text(node, path)
    micros_from_spelling(word)
    return word


def listing(read: Read, what: str) -> Read:
    """A list of such values; a single one may stand alone."""
    read_items = items(read, what)
    return lambda node, path: [field.value for field in read_items(node, path)]


def items(read: Read, what: str) -> Read:
    """The same, each value with its place."""

    def read_items(node: Node, path: str) -> list[Field]:
        if not isinstance(node, Sequence):
            return [Field(read(node, path), FilePosition(node.line, node.column, path))]
        if not node.items:
            raise ConfigError(f"the list is empty; write at least one {what}, or remove the field")
        found = []
        for number, item in enumerate(node.items):
            position = FilePosition(item.line, item.column, f"{path}[{number}]")
            try:
                found.append(Field(read(item, position.path), position))
            except ConfigError as error:
                raise placed(error, position, position.path) from None
        return found

    return read_items


class UnbuiltField:
    """Reads a field that is known and not built: no hint offers it."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __call__(self, *_: Node | str) -> Any:
        raise ConfigError(f"{self._what} is not built yet in this version; remove it")


def _is_duration(word: str) -> bool:
    try:
        micros_from_spelling(word)
    except ConfigError:
        return False
    return True


def _shown(node: Node) -> str:
    if isinstance(node, Mapping):
        return "a mapping"
    if isinstance(node, Sequence):
        return "a list"
    return shown(node.text)


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
