"""The last good copy of the remote rules survives a restart."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from diana import ConfigError, Guard
from diana.rules.watch.local_copy import LocalCopy
from tests.rules.documents import ANY, document, local_file
from tests.servers.waiting import until
from tests.servers.web import WebServer


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diana.rules.backends.http.POLL_SECONDS", 0.05)


@pytest.fixture
def web() -> Iterator[WebServer]:
    with WebServer(document(7)) as web:
        yield web


@pytest.fixture
def file(web: WebServer, tmp_path: Path) -> Path:
    return local_file(tmp_path, f"{{url: '{web.url}', keep: {tmp_path}/kept.yaml}}")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "kept.yaml"


def told(guard: Guard, where: str) -> str:
    return "".join(problem.message for problem in guard.problems if problem.where == where)


def limit(guard: Guard) -> int:
    return guard.check(ANY).decisions[0].limit


def test_every_good_edition_is_kept_and_no_other(web: WebServer, file: Path, kept: Path) -> None:
    guard = Guard.from_file(file)
    until(lambda: kept.exists() and kept.read_bytes() == document(7), "it is kept")
    web.document = document(8)
    until(lambda: kept.read_bytes() == document(8), "the new one is kept")
    web.document = b"url: nowhere"
    until(lambda: guard.problems, "the mistake is seen")
    assert kept.read_bytes() == document(8)
    guard.close()


def test_a_new_copy_is_readable_by_its_owner_only(file: Path, kept: Path) -> None:
    """Rules may hold tokens that exempt a client."""
    guard = Guard.from_file(file)
    until(kept.exists, "it is kept")
    assert kept.stat().st_mode & 0o777 == 0o600
    guard.close()


@pytest.mark.usefixtures("starts_soon")
def test_who_starts_without_the_centre_has_what_it_said_last(
    web: WebServer, file: Path, kept: Path
) -> None:
    first = Guard.from_file(file)
    until(lambda: kept.exists(), "it is kept")
    first.close()
    web.stop()
    second = Guard.from_file(file)
    assert limit(second) == 7
    assert [problem.where for problem in second.problems] == ["remote"]
    web.document = document(8)
    web.start()
    until(lambda: limit(second) == 8, "the centre is back")
    until(lambda: second.problems == (), "all is well again")
    second.close()


@pytest.mark.usefixtures("starts_soon")
def test_a_centre_that_says_nonsense_at_the_start_is_as_good_as_none(
    web: WebServer, file: Path, kept: Path
) -> None:
    kept.write_bytes(document(5))
    web.document = b"limits: []"
    guard = Guard.from_file(file)
    assert limit(guard) == 5
    until(lambda: "the list is empty" in told(guard, "remote"), "the mistake is told")
    guard.close()


@pytest.mark.usefixtures("starts_soon")
@pytest.mark.parametrize(
    "spoilt", [b"", b"url: /\n", b"store: memory://\nlimits: []\n", b"\xff" * 2_000_000]
)
def test_a_spoilt_copy_is_told_and_the_local_rules_hold(
    web: WebServer, file: Path, kept: Path, spoilt: bytes
) -> None:
    kept.write_bytes(spoilt)
    web.stop()
    guard = Guard.from_file(file)
    assert limit(guard) == 1
    assert {problem.where for problem in guard.problems} == {"remote", "copy"}
    web.start()
    until(lambda: guard.problems == (), "the centre is back, and the copy is good again")
    assert (limit(guard), kept.read_bytes()) == (7, document(7))
    guard.close()


@pytest.mark.usefixtures("starts_soon")
@pytest.mark.parametrize("copy", [document(5), b"spoilt"])
def test_rules_that_come_while_the_copy_is_read_make_it_superfluous(
    web: WebServer,
    file: Path,
    kept: Path,
    copy: bytes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept.write_bytes(copy)
    web.stop()
    text = LocalCopy.text

    def slowly(self: LocalCopy) -> bytes | None:
        read = text(self)
        web.start()
        until(lambda: kept.read_bytes() == document(7), "the remote rules come, and are kept")
        return read

    monkeypatch.setattr(LocalCopy, "text", slowly)
    guard = Guard.from_file(file)
    assert limit(guard) == 7
    until(lambda: guard.problems == (), "nothing is wrong with a copy that is new")
    assert "using the local copy" not in caplog.text
    guard.close()


def test_a_copy_that_cannot_be_written_hinders_nobody(web: WebServer, tmp_path: Path) -> None:
    file = local_file(tmp_path, f"{{url: '{web.url}', keep: {tmp_path}/nowhere/kept.yaml}}")
    guard = Guard.from_file(file)
    assert limit(guard) == 7
    until(lambda: guard.problems, "it is told")
    assert guard.problems[0].where == "copy"
    assert "cannot be written" in guard.problems[0].message
    guard.close()


def test_a_copy_that_could_not_be_written_is_written_when_it_can_be(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diana.rules.watch.local_copy.RETRY_SECONDS", 0.05)
    kept = tmp_path / "later" / "kept.yaml"
    guard = Guard.from_file(local_file(tmp_path, f"{{url: '{web.url}', keep: {kept}}}"))
    until(lambda: guard.problems, "it is told")
    kept.parent.mkdir()
    until(lambda: guard.problems == (), "it heals")
    assert kept.read_bytes() == document(7)
    assert [path.name for path in kept.parent.iterdir()] == ["kept.yaml"]
    guard.close()


@pytest.mark.usefixtures("starts_soon")
def test_a_copy_that_cannot_even_be_looked_for_hinders_nobody(
    web: WebServer, tmp_path: Path
) -> None:
    file = local_file(tmp_path, f"{{url: '{web.url}', keep: {tmp_path}/{'long' * 100}}}")
    web.stop()
    guard = Guard.from_file(file)
    assert limit(guard) == 1
    assert {problem.where for problem in guard.problems} == {"remote", "copy"}
    web.start()
    until(lambda: limit(guard) == 7, "the centre is back")
    # Since the start there is a problem of that name: that the copy cannot be read.
    until(lambda: "cannot be written: File name too long" in told(guard, "copy"), "it is told")
    until(lambda: not told(guard, "remote"), "only the copy is missing")
    guard.close()


@pytest.mark.usefixtures("starts_soon")
def test_a_symlink_is_neither_followed_nor_believed(
    web: WebServer, file: Path, kept: Path, tmp_path: Path
) -> None:
    """Another user of a shared folder could have put it there."""
    theirs = tmp_path / "theirs.yaml"
    theirs.write_bytes(document(5_000))
    kept.symlink_to(theirs)
    web.stop()
    guard = Guard.from_file(file)
    assert limit(guard) == 1, "not the 5,000 that the link leads to"
    web.start()
    until(lambda: limit(guard) == 7, "the centre is back")
    until(lambda: [one.where for one in guard.problems] == ["copy"], "the copy is refused")
    assert "kept.yaml: is a symlink" in guard.problems[0].message
    assert theirs.read_bytes() == document(5_000), "nothing is written through it"
    assert kept.is_symlink()
    guard.close()


def test_a_dangling_symlink_is_not_written_through(
    web: WebServer, file: Path, kept: Path, tmp_path: Path
) -> None:
    kept.symlink_to(tmp_path / "victim")
    guard = Guard.from_file(file)
    until(lambda: guard.problems, "the copy is refused")
    assert "kept.yaml: is a symlink" in guard.problems[0].message
    assert not (tmp_path / "victim").exists()
    guard.close()


@pytest.mark.usefixtures("starts_soon")
def test_a_file_of_another_owner_is_neither_believed_nor_replaced(
    web: WebServer, file: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.write_bytes(document(5_000))
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    web.stop()
    guard = Guard.from_file(file)
    assert limit(guard) == 1
    web.start()
    until(lambda: limit(guard) == 7, "the centre is back")
    until(lambda: [one.where for one in guard.problems] == ["copy"], "the copy is refused")
    assert "kept.yaml: belongs to another user" in guard.problems[0].message
    assert kept.read_bytes() == document(5_000)
    guard.close()


@pytest.mark.usefixtures("starts_soon")
def test_what_is_no_file_is_not_read(web: WebServer, file: Path, kept: Path) -> None:
    """Reading a pipe would wait for its writer for ever."""
    os.mkfifo(kept)
    web.stop()
    guard = Guard.from_file(file)
    assert limit(guard) == 1
    (copy,) = (one for one in guard.problems if one.where == "copy")
    assert "kept.yaml: is no regular file" in copy.message
    guard.close()


def test_many_guards_may_keep_one_copy(web: WebServer, file: Path, kept: Path) -> None:
    guards = [Guard.from_file(file) for _ in range(8)]
    web.document = document(8) + b"#" * 500_000
    until(lambda: all(limit(guard) == 8 for guard in guards), "all have seen it")
    until(lambda: kept.read_bytes() == web.document, "it is kept whole")
    assert [guard.problems for guard in guards] == [()] * 8
    for guard in guards:
        guard.close()


def test_the_copy_is_not_the_file_itself(web: WebServer, tmp_path: Path) -> None:
    file = local_file(tmp_path, f"{{url: '{web.url}', keep: {tmp_path}/diana.yaml}}")
    text = file.read_text()
    with pytest.raises(ConfigError, match="keep is this very file"):
        Guard.from_file(file)
    assert (file.read_text(), web.visits) == (text, [])
