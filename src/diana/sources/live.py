"""Rules that change while they are used: from a file, and from a config centre that wins over it and may vanish.

    file ──▶ last good file ─┐
                             ├─▶ policy ──▶ whoever follows
    centre ─▶ last good ─────┘

Each source has a thread that loads, watches, and after an error tries again with a jittered pause. What cannot be read, or says nothing,
or says something wrong, is reported once and changes nothing: the last good rules stay.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from random import SystemRandom
from threading import Event, Lock, Thread
from weakref import WeakMethod, WeakSet

from diana.core.contracts import Edition, Source
from diana.core.errors import ConfigError, SourceError
from diana.core.policy import Policy, Settings
from diana.sources import is_url, open_source
from diana.sources.address import shown_url
from diana.sources.compiler import NEEDS_RESTART
from diana.sources.kept import Kept
from diana.sources.pauses import giving_way, let_go
from diana.sources.replacing import real
from diana.sources.rules import rules_from_bytes, rules_from_remote
from diana.sources.troubles import Trouble, Troubles

log = logging.getLogger("diana")

PATIENCE_SECONDS = 1.0
"""Start is never delayed by more than this."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
MANY, JUDGED_SECONDS = 1_000, 0.1

Swap = Callable[[Policy], object]

_random = SystemRandom()
"""Not the one that everybody shares: whoever seeds that one wants to see the same again. And each forked child has its own."""


class LiveRules:
    """`LiveRules("diana.yaml")`, or a URL. `policy` is what holds now."""

    def __init__(self, where: str | Path, *, environ: Mapping[str, str] | None = None) -> None:
        self._environ = environ
        self._lock = Lock()
        self._closed = Event()
        self._swap: WeakMethod[Swap] | None = None
        self._troubles = Troubles()
        self._wheres: dict[str, str | Path] = {}
        self._sources: dict[str, Source] = {}
        self.changes = 0
        """How often other rules were swapped in."""
        self._file: bytes | None = None
        self._remote: bytes | None = None
        self._remote_name = "remote rules"
        self._kept: Kept | None = None
        self._told_of: dict[str, object] = {}
        self._heard = Event()
        self._end: SimpleQueue[None] = SimpleQueue()
        _living.add(self)
        try:
            if is_url(where) and not str(where).lower().startswith("file://"):
                self._start_without_file(str(where))
            else:
                self._start_with_file(where)
        except BaseException:
            self.close()
            raise

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        """What is wrong now; nothing, if all is well."""
        return self._troubles.now()

    def follow(self, swap: Swap) -> None:
        """Be told of every change, by a method of whoever is told; when that is gone, so are the threads."""
        with self._lock:
            # The collector may strike anywhere, with any lock held: what it calls must take none. A SimpleQueue is made for that.
            self._swap = WeakMethod(swap, lambda _: self._end.put(None))
            swap(self.policy)
        self._close_at_the_end()

    def close(self) -> None:
        self._closed.set()
        self._end.put(None)
        for source in list(self._sources.values()):
            source.close()

    def _close_at_the_end(self) -> None:
        def wait() -> None:
            self._end.get()
            self.close()

        Thread(target=wait, daemon=True, name="diana-rules-end").start()

    def _start_with_file(self, where: str | Path) -> None:
        source = self._opened("file", where)
        try:
            edition = source.load()
        except SourceError as error:
            raise ConfigError(str(error)) from None
        self._file = edition.text
        self._where = str(where)
        self.policy = rules_from_bytes(edition.text, self._where, environ=self._environ)
        self._start = self.policy.settings
        rules_from = self._start.rules_from
        if rules_from is not None:
            self._kept = self._kept_at(rules_from.keep, where)
            self._remote_name = shown_url(rules_from.url)
            self._opened("remote", rules_from.url)
            self._troubles.await_first("remote", "the remote rules are not there yet")
            self._run("remote", rules_from.url, None)
            if not self._heard.wait(PATIENCE_SECONDS):
                log.warning("the remote rules are not there yet; going on with what is here")
            if self._remote is None:
                self._take_kept()
        self._run("file", where if is_url(where) else Path(where).absolute(), edition)

    def _start_without_file(self, url: str) -> None:
        """There is nothing to fall back on, so the first edition has to be there."""
        source = self._opened("remote", url)
        self._where = self._remote_name = shown_url(url)
        edition = source.load()
        self.policy = rules_from_remote(edition.text, self._remote_name)
        self._start = self.policy.settings
        self._remote = edition.text
        self._run("remote", url, edition)

    def _kept_at(self, keep: str | None, where: str | Path) -> Kept | None:
        if keep is None:
            return None
        path = Path(keep).absolute()
        if not is_url(where) and real(path) == real(Path(where)):
            raise ConfigError(
                f"{self._where}: keep is this very file, which it would overwrite; write another path"
            )
        return Kept(path, self._troubles, self._closed)

    def restart(self) -> None:
        """In a forked child: the parent's threads and connections are the parent's."""
        if not self._closed.is_set():
            self._lock, self._end = Lock(), SimpleQueue()
            self._troubles.after_fork()
            self._closed, self._heard = Event(), Event()
            if self._kept is not None:
                self._kept.after_fork(self._closed)
            for name, where in list(self._wheres.items()):
                self._opened(name, where)
                self._run(name, where, None)
            if self._swap is not None:
                self._close_at_the_end()

    def _opened(self, name: str, where: str | Path) -> Source:
        """From now on it is closed with the others, also if the start fails."""
        source = self._sources[name] = open_source(where)
        return source

    def _run(self, name: str, where: str | Path, known: Edition | None) -> None:
        self._wheres[name] = where
        work = partial(self._keep_up, name, self._sources[name], known)
        Thread(target=work, daemon=True, name=f"diana-rules-{name}").start()

    def _keep_up(self, name: str, source: Source, known: Edition | None) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                if known is None or failures:
                    known = source.load()
                    self._take_again(name, known)
                    self._heard.set()
                failures = 0
                for edition in source.watch(known):
                    known = edition
                    self._take(name, edition)
            except SourceError as error:
                self._complain(name, str(error))
            except Exception as error:
                log.debug("a source of rules failed", exc_info=True)
                self._complain(name, f"{type(error).__name__}: {error}")
            failures += 1
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures, 10))
            self._closed.wait(pause * (0.5 + _random.random() / 2))

    def _take_again(self, name: str, edition: Edition) -> None:
        """What is there after a loss: the rules in force, most of the time."""
        if edition.text == (self._file if name == "file" else self._remote):
            self._troubles.well(name)
        else:
            self._take(name, edition)

    def _take(self, name: str, edition: Edition) -> None:
        """Swap in what came, if it is right."""
        with self._lock:
            changed: dict[str, object] = {}
            file = edition.text if name == "file" else self._file
            remote = edition.text if name == "remote" else self._remote
            try:
                with giving_way():
                    if name == "file":
                        policy = self._wanted(edition.text)
                        changed = self._changed(policy.settings)
                    if remote is not None or changed:
                        policy = self._compiled(file, remote)
            except ConfigError as error:
                self._troubles.complain(name, str(error))
                return
            self._file, self._remote = file, remote
            if name == "file":
                self._tell_of(changed)
            old, self.policy = self.policy, policy
            self.changes += 1
            told = None if self._swap is None else self._swap()
            if told is not None:
                told(policy)
            self._troubles.well(name)  # only now: whoever sees it finds the new rules in force
        log.info("%s rules, version %s, are in force", len(policy.rules), policy.version)
        if name == "remote" and self._kept is not None:
            self._kept.write(edition.text)
        if len(old.rules) >= MANY:
            # Whoever is being judged by them is done by then, and does not have to free them all.
            self._closed.wait(JUDGED_SECONDS)
            rules = list(old.rules)
            del old
            let_go(rules)

    def _compiled(self, file: bytes | None, remote: bytes | None) -> Policy:
        if remote is None and file is not None:
            return rules_from_bytes(file, self._where, environ=self._environ, start=self._start)
        return rules_from_remote(
            remote or b"", self._remote_name, local=file, environ=self._environ, start=self._start
        )

    def _wanted(self, file: bytes) -> Policy:
        """What the file says, as it would be after a restart."""
        return rules_from_bytes(file, self._where, environ=self._environ)

    def _take_kept(self) -> None:
        if self._kept is None:
            return
        try:
            text = self._kept.text()
            if text is None:
                return
            policy = self._compiled(self._file, text)
        except (SourceError, ConfigError) as error:
            self._complain("kept", f"the kept copy of the remote rules cannot be used: {error}")
            return
        with self._lock:
            if self._remote is None:
                self._remote, self.policy = text, policy
        log.warning("the remote rules are not there; going on with the copy in %s", self._kept.path)

    def _changed(self, settings: Settings) -> dict[str, object]:
        """What holds after a restart only."""
        start, now = _fixed(self._start), _fixed(settings)
        return {name: value for name, value in now.items() if value != start[name]}

    def _tell_of(self, changed: dict[str, object]) -> None:
        """Once, until something else is changed."""
        if changed and changed != self._told_of:
            log.warning("%s changed; that needs a restart", ", ".join(changed))
        self._told_of = changed

    def _complain(self, name: str, message: str) -> None:
        if not self._closed.is_set():  # whoever hangs up hears no more complaints
            self._troubles.complain(name, message)


def _fixed(settings: Settings) -> dict[str, object]:
    """What a running server cannot change; a filter is made anew with every reading, so what is written of it is compared."""
    filters = [(line.name, line.options) for line in settings.filters]
    return {**{name: getattr(settings, name) for name in NEEDS_RESTART}, "filters": filters}


_living: WeakSet[LiveRules] = WeakSet()


def _restart_all() -> None:
    for live in list(_living):
        live.restart()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart_all)
