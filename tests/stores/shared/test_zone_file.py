"""A zone's file: found by name, made once, refused where it is not this user's own."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from mmap import mmap
from pathlib import Path
from uuid import uuid4

import pytest

from diana import ConfigError
from diana.core.errors import StoreError
from diana.stores.zone.zone_file import (
    header_of_zone,
    open_zone_file,
    path_of_zone,
    remove_zone_file,
)
from diana.stores.zone.zone_header import BODY
from diana.stores.zone.zone_size import SMALLEST_SIZE, size_from_spelling, spelling_from_size

SIZE = SMALLEST_SIZE


def lay_out(mapping: mmap) -> None:
    mapping[BODY : BODY + 4] = b"mine"


@pytest.fixture
def name() -> Iterator[str]:
    name = f"test-{uuid4().hex}"
    yield name
    path_of_zone(name).unlink(missing_ok=True)


def test_it_is_made_once_and_found_again(name: str) -> None:
    file = open_zone_file(name, "python", SIZE, lay_out)
    file.mapping[BODY : BODY + 4] = b"used"
    again = open_zone_file(name, "python", None, lay_out)
    assert again is file
    secret = file.header.secret
    del file, again
    reopened = open_zone_file(name, "python", SIZE, lay_out)
    assert reopened.mapping[BODY : BODY + 4] == b"used"
    assert reopened.header.secret == secret
    assert header_of_zone(name) == reopened.header


def test_only_its_owner_may_read_it_and_all_of_its_room_is_there(name: str) -> None:
    file = open_zone_file(name, "python", SIZE, lay_out)
    status = file.path.stat()
    assert status.st_mode & 0o777 == 0o600
    assert status.st_blocks * 512 >= SIZE


def test_processes_that_start_together_meet_in_one_file(name: str) -> None:
    code = (
        "import sys\n"
        "from diana.stores.zone.zone_file import open_zone_file\n"
        "def lay_out(mapping): mapping[4096:4100] = b'mine'\n"
        "sys.stdin.readline()\n"
        f"file = open_zone_file({name!r}, 'python', {SIZE}, lay_out)\n"
        "print(file.header.secret.hex(), file.mapping[4096:4100].decode(), flush=True)\n"
        "sys.stdin.readline()\n"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    try:
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        said = {process.stdout.readline() for process in started if process.stdout}
        assert len(said) == 1
        assert said.pop().endswith(" mine\n")
    finally:
        for process in started:
            process.communicate("end\n")


def test_a_process_killed_while_it_lays_out_leaves_nothing_that_is_believed(name: str) -> None:
    def die(mapping: mmap) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        open_zone_file(name, "python", SIZE, die)
    os.waitpid(child, 0)
    assert path_of_zone(name).stat().st_size == SIZE
    assert open_zone_file(name, "python", SIZE, lay_out).mapping[BODY : BODY + 4] == b"mine"


SPOILED = {
    "empty": b"",
    "short": b"\x89DIANA\r\n",
    "garbage": os.urandom(SIZE),
    "zeros": bytes(SIZE),
}


@pytest.mark.parametrize("content", SPOILED.values(), ids=SPOILED)
def test_a_file_that_is_no_zone_is_made_anew_if_no_process_uses_it(
    name: str, content: bytes
) -> None:
    path_of_zone(name).touch(0o600)
    path_of_zone(name).write_bytes(content)
    if content:
        with pytest.raises(ConfigError, match=f"diana zone {name} --remove"):
            header_of_zone(name)
    assert open_zone_file(name, "python", SIZE, lay_out).mapping[BODY : BODY + 4] == b"mine"


@pytest.mark.parametrize("spoiled", range(0, 96, 5))
def test_a_damaged_header_is_never_believed(name: str, spoiled: int) -> None:
    file = open_zone_file(name, "python", SIZE, lay_out)
    secret = file.header.secret
    file.mapping[spoiled] ^= 0x10
    del file
    assert open_zone_file(name, "python", SIZE, lay_out).header.secret != secret


def test_a_file_cut_short_is_made_anew(name: str) -> None:
    open_zone_file(name, "python", SIZE, lay_out)
    os.truncate(path_of_zone(name), SIZE // 2)
    assert open_zone_file(name, "python", None, lay_out).path.stat().st_size > SIZE


OTHERS = [
    ({"kind": "native"}, "of the kind python, and this process uses native; set DIANA_NATIVE=0"),
    ({"version": 2}, "is of layout 1, written by another version of Diana"),
    ({"size": 2 * SIZE}, "has a size of 4m, not 8m; write size=4m"),
]


@pytest.mark.parametrize(("other", "said"), OTHERS)
def test_what_this_process_cannot_use_is_refused_while_others_use_it_and_made_anew_after(
    name: str, other: dict[str, object], said: str
) -> None:
    file = open_zone_file(name, "python", SIZE, lay_out)
    wanted = {"kind": "python", "size": SIZE, "lay_out": lay_out, **other}
    child = os.fork()
    if not child:
        code = 1
        try:
            open_zone_file(name, **wanted)  # type: ignore[arg-type]
        except ConfigError as error:
            code = 0 if said in str(error) and f"diana zone {name} --remove" in str(error) else 2
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(ConfigError, match="diana zone"):
        open_zone_file(name, **wanted)  # type: ignore[arg-type]
    secret = file.header.secret
    del file
    gc.collect()  # the traceback of the refusal
    assert open_zone_file(name, **wanted).header.secret != secret  # type: ignore[arg-type]


def test_a_zone_that_no_process_uses_is_adopted_and_made_anew_if_that_fails(name: str) -> None:
    adopted: list[bytes] = []

    def adopt(mapping: mmap) -> None:
        adopted.append(mapping[BODY : BODY + 4])
        if mapping[BODY : BODY + 4] != b"mine":
            raise ConfigError("its locks are damaged")

    file = open_zone_file(name, "python", SIZE, lay_out, adopt)
    assert open_zone_file(name, "python", SIZE, lay_out, adopt) is file
    assert adopted == []
    secret = file.header.secret
    del file
    file = open_zone_file(name, "python", SIZE, lay_out, adopt)
    assert (adopted, file.header.secret) == ([b"mine"], secret)
    file.mapping[BODY : BODY + 4] = b"eyes"
    del file
    file = open_zone_file(name, "python", SIZE, lay_out, adopt)
    assert file.header.secret != secret
    assert file.mapping[BODY : BODY + 4] == b"mine"


def test_the_clock_of_a_zone_is_set_again_while_no_process_uses_it(name: str) -> None:
    file = open_zone_file(name, "python", SIZE, lay_out)
    right = file.header
    wrong = right._replace(epoch_offset_us=right.epoch_offset_us - 5_000_000).packed()
    file.mapping[: len(wrong)] = wrong
    del file
    again = open_zone_file(name, "python", SIZE, lay_out)
    assert again.header.secret == right.secret
    assert abs(again.header.epoch_offset_us - right.epoch_offset_us) < 1_000_000


def test_a_link_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch(0o600)
    path_of_zone(name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="symbolic link"):
        open_zone_file(name, "python", SIZE, lay_out)
    with pytest.raises(ConfigError, match="symbolic link"):
        header_of_zone(name)
    assert not (tmp_path / "elsewhere").stat().st_size


def test_a_file_that_others_may_read_is_refused(name: str) -> None:
    path_of_zone(name).touch(0o600)
    path_of_zone(name).chmod(0o644)
    with pytest.raises(ConfigError, match="mode 644, not 600"):
        open_zone_file(name, "python", SIZE, lay_out)


def test_a_pipe_is_refused_and_not_waited_for(name: str) -> None:
    os.mkfifo(path_of_zone(name), 0o600)
    with pytest.raises(ConfigError, match="is no regular file"):
        open_zone_file(name, "python", SIZE, lay_out)
    with pytest.raises(ConfigError, match="is no regular file"):
        header_of_zone(name)


def test_a_file_of_another_user_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path_of_zone(name).touch(0o600)
    other, here = os.geteuid() + 1, path_of_zone(name)
    monkeypatch.setattr("diana.stores.zone.zone_file.path_of_zone", lambda _: here)
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(ConfigError, match="belongs to another user"):
        open_zone_file(name, "python", SIZE, lay_out)


def test_a_removed_zone_is_another_one_for_those_who_open_it_next(name: str) -> None:
    old = open_zone_file(name, "python", SIZE, lay_out)
    remove_zone_file(name)
    new = open_zone_file(name, "python", SIZE, lay_out)
    assert new.header.secret != old.header.secret
    remove_zone_file(name)
    with pytest.raises(StoreError, match="there is no zone"):
        remove_zone_file(name)
    with pytest.raises(StoreError, match="there is no zone"):
        header_of_zone(name)


@pytest.mark.parametrize("wrong", ["", ".", "..", "a/b", "a b", "-a", "ä", "a" * 65, "a\0"])
def test_a_name_that_is_no_plain_word_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="is no name of a zone"):
        path_of_zone(wrong)


@pytest.mark.parametrize(
    ("spelling", "size"),
    [
        ("64m", 64 << 20),
        ("64M", 64 << 20),
        ("4096k", 4 << 20),
        ("1g", 1 << 30),
        ("16MiB", 16 << 20),
    ],
)
def test_sizes_are_written_as_people_write_them(spelling: str, size: int) -> None:
    assert size_from_spelling(spelling) == size
    assert size_from_spelling(spelling_from_size(size)) == size


@pytest.mark.parametrize(
    "wrong", ["", "m", "1", "-1m", "1.5m", "3m", "65g", "64 m", "64x", "9" * 13]
)
def test_other_sizes_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="size=64m"):
        size_from_spelling(wrong)


def test_no_room_is_said_so(name: str) -> None:
    child = os.fork()
    if not child:
        code = 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, SIZE // 2))
        try:
            open_zone_file(name, "python", SIZE, lay_out)
        except ConfigError as error:
            code = 0 if "no room for 4m of shared memory" in str(error) else 2
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert path_of_zone(name).stat().st_size == 0
