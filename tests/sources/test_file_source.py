"""Rules in files: however they are written, the change is seen."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from diana import ConfigError
from diana.core.contracts import Edition
from diana.core.errors import SourceError
from diana.sources import open_source
from diana.sources.file import FileSource
from tests.servers.waiting import until
from tests.sources.documents import document


class Watched:
    """What a watch gives, as it comes."""

    def __init__(self, source: FileSource) -> None:
        self.source = source
        self.seen: list[bytes] = []
        self.error: SourceError | None = None
        self._thread = Thread(target=self._watch, args=(source.load(),))
        self._thread.start()

    def _watch(self, known: Edition) -> None:
        try:
            for edition in self.source.watch(known):
                self.seen.append(edition.text)
        except SourceError as error:
            self.error = error

    def until_seen(self, text: bytes) -> None:
        until(lambda: self.seen and self.seen[-1] == text, "the change is seen")

    def close(self) -> None:
        self.source.close()
        self._thread.join()


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_bytes(document(1))
    return path


@pytest.fixture
def watched(rules: Path) -> Iterator[Watched]:
    watched = Watched(FileSource(rules))
    yield watched
    watched.close()


def in_place(path: Path, text: bytes) -> None:
    path.write_bytes(text)


def renamed(path: Path, text: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(text)
    new.replace(path)


@pytest.mark.parametrize("write", [in_place, renamed])
def test_every_way_of_writing_is_seen(
    write: Callable[[Path, bytes], None], rules: Path, watched: Watched
) -> None:
    for rpu in range(2, 6):
        write(rules, document(rpu))
        watched.until_seen(document(rpu))
    assert watched.seen == [document(rpu) for rpu in range(2, 6)], "each once, in order"


def test_a_file_of_the_same_size_and_age_is_seen(rules: Path, watched: Watched) -> None:
    was = rules.stat()
    new = rules.with_suffix(".new")
    new.write_bytes(document(2))
    os.utime(new, ns=(was.st_atime_ns, was.st_mtime_ns))
    new.replace(rules)
    watched.until_seen(document(2))


def test_a_file_that_is_being_written_is_not_taken_in_part(
    rules: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diana.sources.file.SETTLE_SECONDS", 1.0)  # a busy machine writes slowly
    whole = b"".join(b"- " + document(rpu).replace(b"\n", b"\n  ") + b"\n" for rpu in range(2, 60))
    with rules.open("wb") as file:
        for line in whole.splitlines(keepends=True):
            file.write(line)
            file.flush()
    watched.until_seen(whole)
    assert watched.seen == [whole]


def test_a_file_that_is_touched_is_no_change(rules: Path, watched: Watched) -> None:
    rules.touch()
    renamed(rules, document(1))
    renamed(rules, document(2))
    watched.until_seen(document(2))
    assert watched.seen == [document(2)]


@pytest.mark.parametrize("whole_directory", [False, True])
def test_kubernetes_swaps_a_symlink(tmp_path: Path, whole_directory: bool) -> None:
    """As a ConfigMap is mounted: the files are links through `..data`, which is a link itself."""
    for number in (1, 2):
        folder = tmp_path / f"..2026_{number}"
        folder.mkdir()
        (folder / "rules.yaml").write_bytes(document(number))
    (tmp_path / "..data").symlink_to("..2026_1")
    (tmp_path / "rules.yaml").symlink_to("..data/rules.yaml")
    watched = Watched(FileSource(tmp_path if whole_directory else tmp_path / "rules.yaml"))
    try:
        (tmp_path / "..data_tmp").symlink_to("..2026_2")
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")
        watched.until_seen(document(2))
    finally:
        watched.close()


def test_a_directory_is_its_yaml_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, rpu in (("b.yml", 2), ("a.yaml", 1), ("readme.txt", 7), (".hidden.yaml", 8)):
        (tmp_path / name).write_bytes(document(rpu))
    both = document(1) + b"\n---\n" + document(2)
    assert FileSource(tmp_path).load().text == both
    watched = Watched(FileSource(tmp_path))
    try:
        (tmp_path / "c.yaml").write_bytes(document(3))
        watched.until_seen(both + b"\n---\n" + document(3))
        (tmp_path / "a.yaml").unlink()
        watched.until_seen(document(2) + b"\n---\n" + document(3))
    finally:
        watched.close()


def test_an_empty_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"there is no \.yaml or \.yml file in it"):
        FileSource(tmp_path).load()


def test_a_file_that_vanishes_is_an_error(rules: Path, watched: Watched) -> None:
    rules.unlink()
    until(lambda: watched.error is not None, "the loss is seen")
    assert str(watched.error) == f"{rules}: cannot be read: No such file or directory"


def test_publishing_replaces_what_was_seen_and_keeps_it(rules: Path) -> None:
    source = FileSource(rules)
    first = source.load()
    second = source.publish(document(2), first)
    assert (rules.read_bytes(), second.text) == (document(2), document(2))
    assert source.previous().text == document(1)
    assert sorted(path.name for path in rules.parent.iterdir()) == [
        "rules.yaml",
        "rules.yaml.previous",
    ]


def test_whoever_has_not_seen_what_is_there_overwrites_nothing(rules: Path) -> None:
    source = FileSource(rules)
    first = source.load()
    source.publish(document(2), first)
    for seen in (first, None):
        with pytest.raises(SourceError, match="changed by somebody else"):
            source.publish(document(3), seen)
    rules.unlink()
    with pytest.raises(SourceError, match="changed by somebody else"):
        source.publish(document(3), first)
    assert source.publish(document(3), None).text == document(3)


def test_the_first_edition_has_no_previous_one(tmp_path: Path) -> None:
    source = FileSource(tmp_path / "new.yaml")
    source.publish(document(1), None)
    with pytest.raises(SourceError, match="there is no previous edition"):
        source.previous()


def test_what_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is a directory; name a file in it"):
        FileSource(tmp_path).publish(document(1), None)
    with pytest.raises(SourceError, match="cannot be written: No such file or directory"):
        FileSource(tmp_path / "nowhere" / "rules.yaml").publish(document(1), None)


def test_a_path_and_a_url_are_the_same(rules: Path) -> None:
    spaced = rules.with_name("my rules.yaml")
    rules.rename(spaced)
    urls = [str(spaced), f"file://{str(spaced).replace(' ', '%20')}"]
    urls.append(urls[1].replace("file://", "FILE://localhost"))
    assert {open_source(url).load().text for url in urls} == {document(1)}
    with pytest.raises(ConfigError, match="with three slashes"):
        open_source("file://etc/rules.yaml")
