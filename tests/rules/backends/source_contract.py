"""What holds for every source: checks that its tests call with a source of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, Queue
from statistics import median
from threading import Event, Thread
from types import TracebackType
from typing import Protocol, Self

import pytest

from diana.core.contracts import Revision, Source, WritableSource
from diana.core.errors import SourceError

CHANGES = 20
SOON = 2.0
"""A change is there within this, on a machine that does not stand still: most of them are, on any."""
GENEROUS = 20.0
"""For what has no bound of its own; a busy machine gets it, too."""


class EditableSource(Source, WritableSource, Protocol): ...


class Following:
    """Loads, watches, and after an error tries again soon, in a thread, as those do who use a source. It closes the source at the end."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._editions: Queue[Revision] = Queue()
        self._errors: Queue[str] = Queue()
        self._over = Event()
        self._thread = Thread(target=self._follow, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._source.close()
        self._thread.join(GENEROUS)
        assert not self._thread.is_alive()

    def text(self, within: float = GENEROUS) -> bytes:
        """What comes next."""
        try:
            return self._editions.get(timeout=within).text
        except Empty:
            raise AssertionError(f"nothing came; errors: {list(self._errors.queue)}") from None

    def until(self, text: bytes, within: float = GENEROUS) -> None:
        """Until this comes."""
        end = time.monotonic() + within
        while self.text(max(0.0, end - time.monotonic())) != text:
            pass

    def error(self, within: float = GENEROUS) -> str:
        return self._errors.get(timeout=within)

    def error_with(self, words: str) -> None:
        """Until an error says this."""
        end = time.monotonic() + GENEROUS
        while words not in self.error(max(0.0, end - time.monotonic())):
            pass

    @property
    def is_well(self) -> bool:
        """Nothing went wrong so far, and nothing came that nobody asked for."""
        return self._editions.empty() and self._errors.empty()

    def _follow(self) -> None:
        known: Revision | None = None
        while not self._over.is_set():
            try:
                edition = self._source.load()
                if known is None or edition.version != known.version:
                    self._editions.put(edition)
                known = edition
                for edition in self._source.watch(known):
                    known = edition
                    self._editions.put(edition)
            except SourceError as error:
                if not self._over.is_set():
                    self._errors.put(str(error))
            self._over.wait(0.1)


def loaded(source: Source) -> Revision:
    """From a server that has just been started, and may be slow yet."""
    end = time.monotonic() + GENEROUS
    while True:
        try:
            return source.load()
        except SourceError:
            assert time.monotonic() < end


def follows_changes_in_order(source: Source, put: Callable[[bytes], object]) -> None:
    """Twenty changes, each seen before the next; then twenty in a row."""
    put(b"0")
    with Following(source) as following:
        assert following.text() == b"0"
        took = []
        for number in range(1, CHANGES + 1):
            put(b"%d" % number)
            published = time.monotonic()
            assert following.text() == b"%d" % number
            took.append(time.monotonic() - published)
        assert median(took) < SOON
        for number in range(101, 101 + CHANGES):
            put(b"%d" % number)
        seen = [0]
        while seen[-1] != 100 + CHANGES:
            seen.append(int(following.text()))
        # Some sources tell of the last of several only; none tells of one twice, or too late.
        assert seen == sorted(set(seen))
        assert following.is_well


def publishes_and_remembers(open_source: Callable[[], EditableSource]) -> None:
    """Two operators: who has not seen what is there cannot replace it, and what was replaced is kept."""
    one, other = open_source(), open_source()
    try:
        with pytest.raises(SourceError):
            one.load()
        with pytest.raises(SourceError):
            one.previous()
        first = one.publish(b"first", None)
        assert one.load() == first
        assert other.load() == first == Revision(b"first", first.version)
        with pytest.raises(SourceError):
            one.previous()
        with pytest.raises(SourceError, match="has changed since it was read"):
            other.publish(b"unseen", None)

        second = other.publish(b"second", first)
        assert second.version != first.version
        with pytest.raises(SourceError, match="has changed since it was read"):
            one.publish(b"late", first)
        assert one.load() == second
        assert one.previous().text == b"first"

        third = one.publish(b"third", second)
        assert other.previous().text == b"second"
        back = other.publish(other.previous().text, third)
        assert one.load() == back == Revision(b"second", back.version)
        assert len({first.version, second.version, third.version, back.version}) == 4
        assert one.previous().text == b"third"
    finally:
        one.close()
        other.close()


def heals_when_it_is_there_again(
    source: Source, put: Callable[[bytes], object], delete: Callable[[], object]
) -> None:
    """Nothing there is an error, at the start and later, and never 'no rules'."""
    with Following(source) as following:
        following.error_with("there is no")
        put(b"here")
        assert following.text() == b"here"
        delete()
        following.error_with("there is no")
        put(b"again")
        assert following.text() == b"again"


def ends_when_closed(source: Source) -> None:
    """A watch in which nothing happens ends soon after `close`, without an error."""
    ended: Queue[float | Exception] = Queue()
    started = Event()

    def watch() -> None:
        try:
            known = source.load()
            started.set()
            for _ in source.watch(known):
                raise AssertionError("nothing was published")
            ended.put(time.monotonic())
        except Exception as error:
            ended.put(error)

    Thread(target=watch, daemon=True).start()
    assert started.wait(GENEROUS)
    closed = time.monotonic()
    source.close()
    end = ended.get(timeout=GENEROUS)
    assert isinstance(end, float), end
    assert end - closed < GENEROUS / 2


def refuses_what_is_too_large(source: Source, put: Callable[[bytes], object]) -> None:
    """1 MiB is too much by one byte, 10 MB by far; less is welcome."""
    largest = b"#" * (1 << 20)
    put(largest)
    assert source.load().text == largest
    with Following(source) as following:
        assert following.text() == largest
        put(largest + b"#")
        following.error_with("more than 1,048,576 bytes")
        put(b"small")
        assert following.text() == b"small"
        put(b"#" * 10_000_000)
        following.error_with("more than 1,048,576 bytes")
        put(b"smaller")
        assert following.text() == b"smaller"
