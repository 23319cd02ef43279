"""Rules in files: however they are written, the change is seen."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Thread

import pytest

from diana import ConfigError, load_rules
from diana.core.contracts import Revision
from diana.core.errors import SourceError
from diana.rules import open_source
from diana.rules.backends.file import FileSource
from tests.rules.documents import document
from tests.servers.waiting import until


class Watched:
    """What a watch gives, as it comes."""

    def __init__(self, source: FileSource) -> None:
        self.source = source
        self.seen: list[bytes] = []
        self.error: SourceError | None = None
        self._thread = Thread(target=self._watch, args=(source.load(),))
        self._thread.start()

    def _watch(self, known: Revision) -> None:
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
    """In one step, or a thread that stands still in between would have written an empty file, too."""
    with path.open("r+b") as file:
        file.write(text)


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
    # Seen, so that its first look, which began with the short pause, is over.
    renamed(rules, document(2))
    watched.until_seen(document(2))
    monkeypatch.setattr(
        "diana.rules.backends.file.SETTLE_SECONDS", 3.0
    )  # a busy machine writes slowly
    whole = b"".join(b"- " + document(rpu).replace(b"\n", b"\n  ") + b"\n" for rpu in range(2, 60))
    with rules.open("wb") as file:
        for line in whole.splitlines(keepends=True):
            file.write(line)
            file.flush()
    watched.until_seen(whole)
    assert watched.seen == [document(2), whole]


def test_a_file_that_is_written_while_it_is_read_is_read_again(
    rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, read = FileSource(rules), FileSource._text
    known = source.load()
    whole = document(2) + b"# and more\n"
    rest = [whole[len(document(2)) :]]

    def read_half(self: FileSource) -> bytes:
        half = read(self)
        if rest:
            with rules.open("ab") as file:
                file.write(rest.pop())
        return half

    monkeypatch.setattr(FileSource, "_text", read_half)
    rules.write_bytes(document(2))
    assert next(source.watch(known)).text == whole
    source.close()


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
        watched.until_seen(marked(("rules.yaml", 2)) if whole_directory else document(2))
    finally:
        watched.close()


def marked(*parts: tuple[str, int]) -> bytes:
    """A folder's files as one document."""
    return b"--- ".join(
        f"# diana: the file {name}\n".encode() + document(rpu) for name, rpu in parts
    )


def test_a_directory_is_its_yaml_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, rpu in (("b.yml", 2), ("a.yaml", 1), ("readme.txt", 7), (".hidden.yaml", 8)):
        (tmp_path / name).write_bytes(document(rpu))
    assert FileSource(tmp_path).load().text == marked(("a.yaml", 1), ("b.yml", 2))
    watched = Watched(FileSource(tmp_path))
    try:
        (tmp_path / "c.yaml").write_bytes(document(3))
        watched.until_seen(marked(("a.yaml", 1), ("b.yml", 2), ("c.yaml", 3)))
        (tmp_path / "a.yaml").unlink()
        watched.until_seen(marked(("b.yml", 2), ("c.yaml", 3)))
    finally:
        watched.close()


def test_an_empty_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"there is no \.yaml or \.yml file in it"):
        FileSource(tmp_path).load()


def test_a_file_of_a_directory_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(document(1))
    (tmp_path / "b.yaml").symlink_to("nowhere")
    with pytest.raises(SourceError, match=r"/b\.yaml: cannot be read: No such file"):
        FileSource(tmp_path).load()
    (tmp_path / "b.yaml").unlink()
    (tmp_path / "b.yaml").write_text("limits: []")
    with pytest.raises(ConfigError, match=r"/b\.yaml:1:1: \[1\]: limits stands alone in one file"):
        load_rules(tmp_path)


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
        with pytest.raises(SourceError, match="has changed since it was read"):
            source.publish(document(3), seen)
    rules.unlink()
    with pytest.raises(SourceError, match="has changed since it was read"):
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
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match="cannot be written: Not a directory"):
        FileSource(tmp_path / "file" / "rules.yaml").publish(document(1), None)
    nameless = FileSource(tmp_path / ("long" * 100))
    with pytest.raises(SourceError, match="cannot be written: File name too long"):
        nameless.publish(document(1), None)
    with pytest.raises(SourceError, match="cannot be read: File name too long"):
        nameless.previous()


def test_a_path_and_a_url_are_the_same(rules: Path) -> None:
    spaced = rules.with_name("my rules.yaml")
    rules.rename(spaced)
    urls = [str(spaced), f"file://{str(spaced).replace(' ', '%20')}"]
    urls.append(urls[1].replace("file://", "FILE://localhost"))
    assert {open_source(url).load().text for url in urls} == {document(1)}
    with pytest.raises(ConfigError, match="with three slashes"):
        open_source("file://etc/rules.yaml")


def test_of_many_who_publish_at_once_one_does(rules: Path) -> None:
    many, rounds = 6, 15
    together = Barrier(many)

    def publish(rpu: int) -> str:
        source = FileSource(rules)
        together.wait()
        try:
            source.publish(document(rpu), seen)
        except SourceError as error:
            return str(error)
        return "published"

    with ThreadPoolExecutor(many) as operators:
        for number in range(rounds):
            seen = FileSource(rules).load()
            first = 10 + number * many
            won = list(operators.map(publish, range(first, first + many)))
            assert rules.read_bytes() == document(first + won.index("published"))
            told = f"{rules} has changed since it was read; run the command again"
            assert sorted(won) == sorted(["published"] + [told] * (many - 1))


def test_publishing_follows_a_link_and_keeps_the_mode(rules: Path, tmp_path: Path) -> None:
    rules.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to("rules.yaml")
    source = FileSource(link)
    source.publish(document(2), source.load())
    assert link.is_symlink()
    assert (rules.read_bytes(), rules.stat().st_mode & 0o777) == (document(2), 0o640)
    assert (tmp_path / "rules.yaml.previous").stat().st_mode & 0o777 == 0o640
    assert source.previous() == FileSource(rules).previous()
    assert source.previous().text == document(1)


def test_after_a_loss_whoever_writes_the_file_anew_is_let_finish(
    rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "diana.rules.backends.file.SETTLE_SECONDS", 3.0
    )  # a busy machine writes slowly
    rules.unlink()
    source = FileSource(rules)
    with pytest.raises(SourceError):
        source.load()
    found: list[bytes] = []
    with rules.open("wb") as file:
        file.write(b"- " + document(1).replace(b"\n", b"\n  ") + b"\n")
        file.flush()
        reading = Thread(target=lambda: found.append(source.load().text))
        reading.start()
        reading.join(0.2)  # who does not wait is done by then
        file.write(b"- " + document(2).replace(b"\n", b"\n  ") + b"\n")
    reading.join()
    assert found == [rules.read_bytes()]


def test_a_change_that_puts_the_time_of_the_file_back_is_seen(
    rules: Path, watched: Watched
) -> None:
    was = rules.stat()
    rules.write_bytes(document(2))
    os.utime(rules, ns=(was.st_atime_ns, was.st_mtime_ns))
    watched.until_seen(document(2))
    rules.write_bytes(document(3))
    os.utime(rules, ns=(was.st_atime_ns, was.st_mtime_ns))
    watched.until_seen(document(3))


def test_a_mistake_in_a_folder_is_told_with_its_file_and_its_line_there(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"# one\n\n\n" + document(1))
    (tmp_path / "b.yaml").write_bytes(b"\xef\xbb\xbf" + document(2).replace(b"day", b"hour"))
    load_rules(tmp_path)
    (tmp_path / "c.yaml").write_text("url: /c\nrules: [{unit: day, rpu: many}]\n")
    (tmp_path / "d.yaml").write_text("url: d\nrules: [{unit: day, rpu: 1}]\n")
    with pytest.raises(ConfigError) as caught:
        load_rules(tmp_path)
    first, second = str(caught.value).splitlines()
    assert first.startswith(f"{tmp_path}/c.yaml:2:26: [2].rules[0].rpu: 'many' is no")
    assert second.startswith(f"{tmp_path}/d.yaml:1:6: [3].url: ")
    assert [(error.file, error.line) for error in caught.value.errors] == [
        (f"{tmp_path}/c.yaml", 2),
        (f"{tmp_path}/d.yaml", 1),
    ]
    (tmp_path / "b.yaml").write_text("url: /b\nrules: {\n")
    with pytest.raises(ConfigError, match=r"/b\.yaml:3:1: this is no YAML"):
        load_rules(tmp_path)
