"""A configuration of nginx as a tree of directives, read as nginx reads it.

A parameter may stand in quotes; a backslash escapes quotes and itself, and stays before anything else. `include` takes a file or a
pattern, relative to the folder of the first file. What a `*_by_lua_block` holds is Lua, of which only the end matters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from glob import glob, has_magic
from os.path import realpath
from pathlib import Path
from typing import NamedTuple

from diana.core.errors import ConfigError, shown

DEEPEST = 64
"""Blocks and files within each other."""
MOST_FILES = 10_000
_ESCAPED = re.compile(r"\\([\"'\\trn])")
_SIGNS = {"t": "\t", "r": "\r", "n": "\n"}
_ENDS = " \t\r\n;{"
_BLANKS = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_BARE = re.compile(r"(?:\\.|\$\{|[^ \t\r\n;{\\])*", re.DOTALL)
_QUOTED = {
    quote: re.compile(rf"{quote}((?:\\.|[^{quote}\\])*){quote}", re.DOTALL) for quote in "\"'"
}
_LUA = re.compile(
    r"--\[(?P<comment>=*)\[.*?\](?P=comment)\]|--[^\n]*|\[(?P<text>=*)\[.*?\](?P=text)\]"
    r"|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|(?P<brace>[{}])",
    re.DOTALL,
)


class Directive(NamedTuple):
    name: str
    args: tuple[str, ...]
    file: str
    line: int
    block: tuple[Directive, ...] = ()
    has_block: bool = False

    def each(self, *names: str) -> Iterator[Directive]:
        """Those of these names that stand directly in its block."""
        return (one for one in self.block if one.name in names)

    def within(self) -> Iterator[Directive]:
        """All that stands in its block, however deep."""
        for one in self.block:
            yield one
            yield from one.within()

    def mistake(self, text: str) -> ConfigError:
        return _mistake(self.file, self.line, text)

    def arguments(self, least: int, most: int, example: str) -> tuple[str, ...]:
        if not least <= len(self.args) <= most:
            count = str(least) if least == most else f"{least} to {most}"
            raise self.mistake(
                f"{self.name} must have {count} parameters (got {len(self.args)}); write {example}"
            )
        return self.args


def read_configuration(path: str) -> Directive:
    """The level of `http`: that of the file, or the file itself if it is one that is included there."""
    top = _Files(Path(path).parent).directives(path, (), path, 1)
    for one in top:
        if one.name == "http" and one.has_block:
            return one
    return Directive("http", (), path, 1, top, True)


def _mistake(file: str, line: int, text: str) -> ConfigError:
    return ConfigError(f"{file}:{line}: {text}", line=line, file=file)


class _Files:
    """A file and those that it includes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def directives(
        self, path: str, including: tuple[str, ...], file: str, line: int
    ) -> tuple[Directive, ...]:
        """`file` and `line` are where it is included."""
        try:
            if including and not Path(path).is_file():
                raise FileNotFoundError
            content = Path(path).read_bytes()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "there is no such file"
            raise _mistake(file, line, f"{path[:200]} must be a file to read ({why})") from None
        text = content.decode("utf-8", "replace")
        read = _block(_Tokens(text, path), 0)
        return tuple(self._with_included(read, (*including, realpath(path))))

    def _with_included(
        self, directives: tuple[Directive, ...], including: tuple[str, ...]
    ) -> Iterator[Directive]:
        for one in directives:
            if one.name != "include" or one.has_block:
                inner = tuple(self._with_included(one.block, including)) if one.block else ()
                yield one._replace(block=inner)
                continue
            (pattern,) = one.arguments(1, 1, "a file or a pattern, such as include conf.d/*.conf;")
            if "\0" in pattern:
                raise one.mistake(f"include must name a file (got {shown(pattern)})")
            for path in self._found(pattern):
                self._check(one, path, including)
                yield from self.directives(path, including, one.file, one.line)

    def _found(self, pattern: str) -> list[str]:
        whole = str(self._folder / pattern)
        return sorted(glob(whole)) if has_magic(whole) else [whole]

    def _check(self, one: Directive, path: str, including: tuple[str, ...]) -> None:
        self._count += 1
        if realpath(path) in including:
            raise one.mistake(f"include must not lead back to the file itself (got {shown(path)})")
        if len(including) >= DEEPEST or self._count > MOST_FILES:
            raise one.mistake(
                f"include must lead to at most {MOST_FILES} files, {DEEPEST} deep (got more)"
            )


class _Tokens:
    """What one file consists of."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self.file = file

    @property
    def line(self) -> int:
        return self._line

    def next_statement(self) -> tuple[list[str], int, str]:
        """A directive's words, the line of the first one, and what ends them: `;`, `{`, `}` or nothing more."""
        words: list[str] = []
        line = self._line
        while True:
            self._skip_blanks()
            sign = self._text[self._at : self._at + 1]
            if not words:
                line = self._line
            if not sign or sign == "}":
                if words:
                    found = '"}"' if sign else "the end of the file"
                    raise self.mistake(f'{words[0][:40]} must end with ";" (got {found})', line)
                self._at += 1
                return words, line, sign
            if sign in ";{":
                if not words:
                    raise self.mistake(f'a directive must begin with its name (got "{sign}")')
                self._at += 1
                return words, line, sign
            words.append(self._quoted(sign) if sign in "\"'" else self._bare())

    def skip_lua(self) -> None:
        """To behind the brace that ends the block."""
        depth = 1
        for found in _LUA.finditer(self._text, self._at):
            depth += {"{": 1, "}": -1}.get(found["brace"] or "", 0)
            if not depth:
                self._move_to(found.end())
                return
        raise self.mistake('a block of Lua must end with "}" (got the end of the file)')

    def mistake(self, text: str, line: int | None = None) -> ConfigError:
        return _mistake(self.file, line or self._line, text)

    def _skip_blanks(self) -> None:
        self._move_to(_end(_BLANKS, self._text, self._at))

    def _quoted(self, quote: str) -> str:
        found = _QUOTED[quote].match(self._text, self._at)
        if found is None:
            raise self.mistake(f"a text in quotes must end with {quote} (got the end of the file)")
        self._move_to(found.end())
        behind = self._text[self._at : self._at + 1]
        if behind and behind not in f"{_ENDS})":
            raise self.mistake(
                f"behind a text in quotes there must be a blank or an end (got {shown(behind)})"
            )
        return _unescaped(found[1])

    def _bare(self) -> str:
        start = self._at
        end = _end(_BARE, self._text, start)
        if end == start:
            raise self.mistake("a word must not end with a backslash (got the end of the file)")
        self._move_to(end)
        return _unescaped(self._text[start:end])

    def _move_to(self, end: int) -> None:
        self._line += self._text.count("\n", self._at, end)
        self._at = end


def _block(tokens: _Tokens, depth: int) -> tuple[Directive, ...]:
    """The directives up to the end of the block, or of the file."""
    found: list[Directive] = []
    begins = tokens.line
    while True:
        words, line, end = tokens.next_statement()
        if end == "}" and not depth:
            raise tokens.mistake('there must be a "{" for each "}" (got one more "}")')
        if not end and depth:
            raise tokens.mistake(
                f'the block that begins in line {begins} must end with "}}" (got the end of the file)'
            )
        if end in ("", "}"):
            return tuple(found)
        name, *args = words
        inner: tuple[Directive, ...] = ()
        if end == "{" and name.endswith("_by_lua_block"):
            tokens.skip_lua()
        elif end == "{":
            if depth >= DEEPEST:
                raise tokens.mistake(f"blocks must be at most {DEEPEST} deep (got more)")
            inner = _block(tokens, depth + 1)
        found.append(Directive(name, tuple(args), tokens.file, line, inner, end == "{"))


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Of a pattern that matches nothing, too."""
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPED.sub(lambda found: _SIGNS.get(found[1], found[1]), text)
