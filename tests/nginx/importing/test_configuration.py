"""Reading a configuration as nginx reads it; what is no configuration is one clean error."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from diana import ConfigError
from diana.nginx.importing import import_nginx
from diana.nginx.importing.configuration import Directive, read_configuration


def read(folder: Path, text: str) -> Directive:
    file = folder / "nginx.conf"
    file.write_text(text, encoding="utf-8")
    return read_configuration(str(file))


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("a b  c;", ("b", "c")),
        ("a\n  b # c; }\n;", ("b",)),
        ("a b#c;", ("b#c",)),
        ("""a "b c" 'd;}' "";""", ("b c", "d;}", "")),
        (r"""a "b\"c" 'd\'e' f\ g \d \\;""", ('b"c', "d'e", r"f\ g", r"\d", "\\")),
        (r"a b\;c\nd;", (r"b\;c" + "\nd",)),
        ("a b}c ${d}e;", ("b}c", "${d}e")),
        ("a b\"c'd;", ("b\"c'd",)),
        ('a ($b = "c") d;', ("($b", "=", "c", ")", "d")),
    ],
)
def test_words(tmp_path: Path, text: str, args: tuple[str, ...]) -> None:
    (one,) = read(tmp_path, text).block
    assert (one.name, one.args) == ("a", args)


def test_blocks_and_lines(tmp_path: Path) -> None:
    http = read(tmp_path, "events { }\nhttp {\n  server {\n    a;\n  }\n\n  b\n c { }\n}\n")
    assert [(one.name, one.line, one.has_block) for one in http.within()] == [
        ("server", 3, True),
        ("a", 4, False),
        ("b", 7, True),
    ]


def test_lua(tmp_path: Path) -> None:
    http = read(
        tmp_path,
        "a_by_lua_block { if x then y = { \"}\", '}', [[ } ]] } end -- }\n--[==[ } ]==] }\nb;",
    )
    assert [(one.name, one.line) for one in http.block] == [("a_by_lua_block", 1), ("b", 3)]


def test_includes(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "b.conf").write_text("b;")
    (tmp_path / "conf.d" / "a.conf").write_text("a; include c.conf;")
    (tmp_path / "c.conf").write_text("c;\nd;")
    http = read(
        tmp_path,
        "http { map $x $y { include c.conf; } include conf.d/*.conf; include none/*.conf; }",
    )
    assert [(one.name, Path(one.file).name, one.line) for one in http.within()] == [
        ("map", "nginx.conf", 1),
        ("c", "c.conf", 1),
        ("d", "c.conf", 2),
        ("a", "a.conf", 1),
        ("c", "c.conf", 1),
        ("d", "c.conf", 2),
        ("b", "b.conf", 1),
    ]


WRONG = [
    ("http {\nlocation {", 'nginx.conf:2: the block that begins in line 2 must end with "}"'),
    ("http { server {\nlocation { } } }", "nginx.conf:2: location must have 1 to 2 parameters (got 0)"),
    ("http { server { location /; } }", "nginx.conf:1: location must have a block"),
    ("http { server { location a b { } } }", "location must have one of"),
    ("http { limit_req_zone", 'nginx.conf:1: limit_req_zone must end with ";"'),
    ("http { a }", 'nginx.conf:1: a must end with ";" (got "}")'),
    ("http { } }", 'nginx.conf:1: there must be a "{" for each "}"'),
    ("http { ; }", "nginx.conf:1: a directive must begin with its name"),
    ('a "b;', "nginx.conf:1: a text in quotes must end"),
    ('a "b"c;', "behind a text in quotes there must be a blank"),
    ("a b\\", "must not end with a backslash"),
    ("a_by_lua_block { {", "a block of Lua must end"),
    ("a {" * 70, "nginx.conf:1: blocks must be at most 64 deep"),
    ("\n\ninclude nginx.conf;", "nginx.conf:3: include must not lead back to the file itself"),
    ("include none.conf;", "none.conf must be a file to read (there is no such file)"),
    ("include /dev/zero;", "must be a file to read"),
    ("include a b;", "include must have 1 parameters (got 2)"),
    ("include a\0b;", "include must name a file"),
    (f"include {'a' * 5000};", "must be a file to read"),
    ("geo { default; }", "nginx.conf:1: geo must name a variable"),
    ("geo $a { default; }", "nginx.conf:1: default must have 1 parameters (got 0)"),
    ("geo $a { 10.0.0.0/33 1; }", "geo must list addresses"),
    ("geo $a { ranges; 10.0.0.9-10.0.0.1 1; }", "geo must list addresses"),
    ("geo $a { ranges; 10.0.0.1-10.0.0.9 1; 10.0.0.5-10.0.0.20 2; }", "ranges that overlap"),
    ("map $a { }", "map must have 2 parameters"),
    ("map;", "map must name a variable"),
    ("map $b $a { c d e; }", "c must have 1 parameters (got 2)"),
    ("limit_req_zone $a;", "limit_req_zone must have 2 to 4 parameters"),
    ("limit_req_zone $a zone=b:1m rate=x;", "limit_req_zone must have zone=NAME:SIZE and rate"),
    ("limit_req_zone $a rate=1r/s;", "limit_req_zone must have a zone"),
    ("limit_req_zone $a zone=b:1m rate=0r/s;", "rate must be from 1"),
    ("limit_req zone=b burst=many;", "limit_req must have zone=NAME, burst=N"),
    ("limit_req burst=1;", "limit_req must have a zone"),
    ("limit_conn b;", "limit_conn must have 2 parameters"),
    ("limit_conn b 0;", "limit_conn must have a number from 1 to 65535"),
    ("limit_req zone=b; limit_req_status abc;", "limit_req_status must be a status from 400 to 599 (got 'abc')"),
    ("limit_req zone=b; limit_req_dry_run maybe;", "limit_req_dry_run must be on or off"),
    ("limit_req zone=b; limit_req_dry_run;", "limit_req_dry_run must have 1 parameters"),
    ("limit_req zone=b; error_page;", "error_page must have 2"),
]  # fmt: skip
USED = "limit_req_zone $a zone=z:1m rate=1r/s; limit_req zone=z;"


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_mistake_is_an_error_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "nginx.conf"
    needs_use = text.startswith(("geo $", "map $"))
    file.write_text(f"{text} {USED}" if needs_use else text, encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        import_nginx(str(file))
    assert message in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path))
    assert raised.value.line is not None


WORDS = (
    "http", "server", "location", "map", "geo", "limit_req_zone", "limit_req", "limit_conn_zone", "limit_conn", "listen",
    "server_name", "include", "default", "ranges", "hostnames", "return", "rewrite", "if", "try_files", "error_page",
    "limit_req_status", "limit_req_dry_run", "set", "internal", "proxy_pass", "init_by_lua_block", "nginx.conf", "*", "=", "^~", "~",
    "~*", "/", "/a/", "/a/*", "/{x}", "@n", "$a", "$b", "${a", "$binary_remote_addr", "$http_x", "$server_name", "$", "zone=a:1m",
    "zone=a", "rate=1r/m", "rate=9999999999999r/s", "burst=5", "burst=-1", "nodelay", "delay=1", "10.0.0.0/8", "::/0", "1-2", "80",
    "[::]:80", "unix:", "*.x", ".x", "~(", "x.*", "_", "on", "off", "abc", "503", "=200", '""', "''", '"', "'", "\\", "#", "\n", "\0",
    "\ufffd", ";", ";", ";", ";", "{", "{", "}", "}", " ", " ", "\t",
)  # fmt: skip
"""What random configurations consist of."""


def test_random_text_gives_rules_or_a_clean_error(tmp_path: Path) -> None:
    chance = random.Random(7)
    file = tmp_path / "nginx.conf"
    messages = []
    for number in range(1_500):
        if number % 10:
            text = " ".join(chance.choices(WORDS, k=chance.randint(1, 60)))
            file.write_text(_balanced(text, chance) if number % 2 else text, encoding="utf-8")
        else:
            file.write_bytes(chance.randbytes(chance.randint(0, 300)))
        try:
            import_nginx(str(file))
        except ConfigError as error:
            messages.append(str(error))
    assert all(message.startswith(str(tmp_path)) for message in messages)
    assert 100 < len(messages) < 1_400


def _balanced(text: str, chance: random.Random) -> str:
    """With as many statements that hold together as chance likes."""
    statements = []
    for _ in range(chance.randint(1, 12)):
        words = [
            word
            for word in chance.choices(WORDS, k=chance.randint(1, 4))
            if word not in ";{}\"'\\#"
        ]
        inner = " ".join(words) or "a"
        statements.append(f"{inner} {{ {inner}; }}" if chance.random() < 0.3 else f"{inner};")
    return f"http {{ {' '.join(statements)} }} " + ("" if chance.random() < 0.8 else text)
