"""Rules that change while they are used: from a file, and from a config centre that wins over it and may vanish.

    file ──▶ last good file ─┐
                             ├─▶ policy ──▶ the guard that follows
    centre ─▶ last good ─────┘

Each source has a thread that loads, watches, and after an error tries again with a jittered pause. What cannot be read, or says nothing,
or says something wrong, is reported once and changes nothing: the last good rules stay.

A forked child has threads of its own, from the fork on; one that was forked in C, unseen by Python, from its first request on (`ensure`).
Locks and threads are made by their names in the module: gevent may have patched it after this was imported.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  # the first lookup of a host imports it, and no background thread may: see diana.runtime.fork
import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from weakref import WeakMethod, WeakSet

from diana.core.contracts import Revision, Source
from diana.core.errors import ConfigError, SourceError
from diana.core.policy import Policy, Settings
from diana.rules import is_url, open_source
from diana.rules.backends.atomic_file import resolve_links
from diana.rules.backends.server_list import shown_url
from diana.rules.document.compiler import NEEDS_RESTART
from diana.rules.document.yaml_tree import free_gradually
from diana.rules.loading import rules_from_bytes, rules_from_remote
from diana.rules.watch.local_copy import LocalCopy
from diana.rules.watch.rules_health import Problem, Problems
from diana.rules.watch.swap_without_gc import low_impact
from diana.runtime.background_thread import Backoff
from diana.runtime.fork import is_about_to_fork, loses_threads_after_fork

log = logging.getLogger("diana")

START_WAIT_SECONDS = 1.0
"""Start is never delayed by more than this."""
MANY_RULES = 1_000
RETRY_SECONDS = 1.0
"""After which a process that had no room for a thread tries again."""
IN_USE_SECONDS = 0.1
"""For so long requests may still be decided by rules that were replaced."""

ApplyPolicy = Callable[[Policy], object]


class LiveRules:
    """`LiveRules("diana.yaml")`, or a URL. `policy` is what holds now."""

    def __init__(self, where: str | Path, *, environ: Mapping[str, str] | None = None) -> None:
        self._environ = environ
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._swap: WeakMethod[ApplyPolicy] | None = None
        self._problems = Problems()
        self._wheres: dict[str, str | Path] = {}
        self._sources: dict[str, Source] = {}
        self.changes = 0
        """How often other rules were swapped in."""
        self._file: bytes | None = None
        self._remote: bytes | None = None
        self._remote_name = "remote rules"
        self._local_copy: LocalCopy | None = None
        self._warned_of: dict[str, object] = {}
        self._remote_loaded = threading.Event()
        self._looked: dict[str, threading.Event] = {}
        """By source: its thread has looked for the first time in this process."""
        self._end = _locked()
        self._starts: dict[int, object] = {}
        """By process: who starts the threads there."""
        self._start_again = 0.0
        self._pid = 0 if is_about_to_fork() else os.getpid()
        """The process in which the threads run; 0: they are not started yet."""
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
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong now; empty if nothing is."""
        return self._problems.now()

    def follow(self, swap: ApplyPolicy) -> None:
        """Call this method on every change. When its object is gone, so are the threads."""
        with self._lock:
            # The garbage collector may run anywhere, with any lock held: what it calls must take none, but may let go of one.
            self._swap = WeakMethod(swap, lambda _: self._come_to_an_end())
            swap(self.policy)
        if self._pid:
            self._close_at_the_end()

    def ensure(self) -> bool:
        """Follow in this process, if it does not yet; whether it does. Called with every use, since a server may fork unseen."""
        pid = os.getpid()
        if self._pid == pid or self._closed.is_set():
            return True
        if monotonic() < self._start_again or is_about_to_fork():
            return False
        me = object()
        if self._starts.setdefault(pid, me) is me:
            self._starts = {pid: me}
            if not self.restart():
                self._starts = {}
        # What was published since the parent read the rules holds here, too.
        ends = monotonic() + START_WAIT_SECONDS
        for looked in list(self._looked.values()):
            looked.wait(max(0.0, ends - monotonic()))
        return self._pid == pid

    def close(self) -> None:
        self._closed.set()
        self._come_to_an_end()
        for source in list(self._sources.values()):
            source.close()

    def _come_to_an_end(self) -> None:
        with suppress(RuntimeError):  # it has
            self._end.release()

    def _close_at_the_end(self) -> None:
        end = self._end

        def wait() -> None:
            end.acquire()
            self.close()

        threading.Thread(target=wait, daemon=True, name="diana-rules-end").start()

    def _start_with_file(self, where: str | Path) -> None:
        source = self._open("file", where)
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
            self._local_copy = self._local_copy_at(rules_from.keep, where)
            self._remote_name = shown_url(rules_from.url)
            self._open("remote", rules_from.url)
            self._problems.expect("remote", "the remote rules are not loaded yet")
            self._run("remote", rules_from.url, None)
            if self._pid and not self._remote_loaded.wait(START_WAIT_SECONDS):
                log.warning("remote rules not loaded yet; starting without them")
            if self._remote is None:
                self._use_local_copy()
        self._run("file", where if is_url(where) else Path(where).absolute(), edition)

    def _start_without_file(self, url: str) -> None:
        """There is nothing to fall back on, so the first edition has to be there."""
        source = self._open("remote", url)
        self._where = self._remote_name = shown_url(url)
        edition = self._load_soon(source) if self._pid else source.load()
        self.policy = rules_from_remote(edition.text, self._remote_name)
        self._start = self.policy.settings
        self._remote = edition.text
        self._run("remote", url, edition)

    def _load_soon(self, source: Source) -> Revision:
        """In a thread: a source may wait longer for its server than a start is to be delayed."""
        found: list[Revision | Exception] = []

        def load() -> None:
            try:
                found.append(source.load())
            except Exception as error:
                found.append(error)

        loading = threading.Thread(target=load, daemon=True, name="diana-rules-start")
        loading.start()
        loading.join(START_WAIT_SECONDS)
        if not found:
            raise SourceError(f"{self._remote_name}: no answer within {START_WAIT_SECONDS:g} s")
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    def _local_copy_at(self, keep: str | None, where: str | Path) -> LocalCopy | None:
        if keep is None:
            return None
        path = Path(keep).absolute()
        if not is_url(where) and resolve_links(path) == resolve_links(Path(where)):
            raise ConfigError(
                f"{self._where}: keep is this very file, which it would overwrite; write another path"
            )
        return LocalCopy(path, self._problems, self._closed)

    def restart(self) -> bool:
        """In a forked child: the parent's threads and connections are the parent's. False if no thread can be started."""
        if self._closed.is_set():
            return True
        self._lock, self._end = threading.Lock(), _locked()
        self._problems.after_fork()
        self._closed, self._remote_loaded = threading.Event(), threading.Event()
        pid, self._pid = self._pid, os.getpid()
        try:
            if self._local_copy is not None:
                self._local_copy.after_fork(self._closed)
            for name, where in list(self._wheres.items()):
                self._open(name, where)
                self._run(name, where, None)
            if self._swap is not None:
                self._close_at_the_end()
        except RuntimeError as error:  # the system has no room for another thread
            self._pid, self._start_again = pid, monotonic() + RETRY_SECONDS
            self._closed.set()
            self._closed = threading.Event()
            for source in list(self._sources.values()):
                source.close()
            self._looked = {}
            self._problems.report("threads", f"cannot start a thread to follow them: {error}")
            return False
        self._problems.clear("threads")
        return True

    def _open(self, name: str, where: str | Path) -> Source:
        """Closed with the others from now on, also if the start fails."""
        source = self._sources[name] = open_source(where)
        return source

    def _run(self, name: str, where: str | Path, known: Revision | None) -> None:
        self._wheres[name] = where
        if not self._pid:
            self._sources[name].close()  # the first use opens it anew
            return
        self._looked[name] = threading.Event()
        work = partial(self._follow, name, self._sources[name], known, self._closed)
        threading.Thread(target=work, daemon=True, name=f"diana-rules-{name}").start()

    def _follow(
        self, name: str, source: Source, known: Revision | None, closed: threading.Event
    ) -> None:
        backoff = Backoff()
        looked = self._looked[name]
        while not closed.is_set():
            try:
                if known is None or backoff.is_retry:
                    known = source.load()
                    self._apply_if_changed(name, known)
                    self._remote_loaded.set()
                backoff.reset()
                looked.set()
                for edition in source.watch(known):
                    known = edition
                    self._apply(name, edition)
            except SourceError as error:
                self._report(name, str(error))
            except Exception as error:
                log.debug("rules source failed", exc_info=True)
                self._report(name, f"{type(error).__name__}: {error}")
            looked.set()
            closed.wait(backoff.next_seconds())

    def _apply_if_changed(self, name: str, edition: Revision) -> None:
        """What is there after a loss: the rules in force, most of the time."""
        if edition.text == (self._file if name == "file" else self._remote):
            self._problems.clear(name)
        else:
            self._apply(name, edition)

    def _apply(self, name: str, edition: Revision) -> None:
        """Swap in what came, if it is right."""
        with self._lock:
            changed: dict[str, object] = {}
            file = edition.text if name == "file" else self._file
            remote = edition.text if name == "remote" else self._remote
            try:
                with low_impact():
                    if name == "file":
                        policy = self._after_restart(edition.text)
                        changed = self._changed(policy.settings)
                    if remote is not None or changed:
                        policy = self._compiled(file, remote)
            except ConfigError as error:
                self._problems.report(name, str(error))
                return
            swap = self._swap() if self._swap is not None else None
            if swap is not None:
                try:
                    swap(policy)
                except ConfigError as error:  # right by itself, but its stores cannot keep it
                    self._problems.report(name, str(error))
                    return
            self._file, self._remote = file, remote
            if name == "file":
                self._warn_of_restart(changed)
            old, self.policy = self.policy, policy
            self.changes += 1
            self._problems.clear(
                name
            )  # only now: when a problem is gone, the new rules are in force
        log.info("%s rules, version %s, are in force", len(policy.rules), policy.version)
        if name == "remote" and self._local_copy is not None:
            self._local_copy.write(edition.text)
        if len(old.rules) >= MANY_RULES:
            # Requests decided by them are done by then, and none has to free them all.
            self._closed.wait(IN_USE_SECONDS)
            rules = list(old.rules)
            del old
            free_gradually(rules)

    def _compiled(self, file: bytes | None, remote: bytes | None) -> Policy:
        if remote is None and file is not None:
            return rules_from_bytes(file, self._where, environ=self._environ, start=self._start)
        return rules_from_remote(
            remote or b"", self._remote_name, local=file, environ=self._environ, start=self._start
        )

    def _after_restart(self, file: bytes) -> Policy:
        """What the file says, as it would be after a restart."""
        return rules_from_bytes(file, self._where, environ=self._environ)

    def _use_local_copy(self) -> None:
        if self._local_copy is None:
            return
        try:
            text = self._local_copy.text()
            if text is None:
                return
            policy = self._compiled(self._file, text)
        except (SourceError, ConfigError) as error:
            with self._lock:
                if self._remote is None:  # else they came meanwhile, and the copy is written anew
                    self._report(
                        "copy", f"the local copy of the remote rules cannot be used: {error}"
                    )
            return
        with self._lock:
            if self._remote is not None:
                return  # they came meanwhile
            self._remote, self.policy = text, policy
        log.warning("remote rules not loaded yet; using the local copy %s", self._local_copy.path)

    def _changed(self, settings: Settings) -> dict[str, object]:
        """What holds after a restart only."""
        start, now = _fixed(self._start), _fixed(settings)
        return {name: value for name, value in now.items() if value != start[name]}

    def _warn_of_restart(self, changed: dict[str, object]) -> None:
        """Once, until something else is changed."""
        if changed and changed != self._warned_of:
            log.warning("%s changed; that needs a restart", ", ".join(changed))
        self._warned_of = changed

    def _report(self, name: str, message: str) -> None:
        if not self._closed.is_set():  # an error caused by closing is none
            self._problems.report(name, message)


def _fixed(settings: Settings) -> dict[str, object]:
    """What a running server cannot change; a filter is made anew with every reading, so what is written of it is compared."""
    filters = [(line.name, line.options) for line in settings.filters]
    return {**{name: getattr(settings, name) for name in NEEDS_RESTART}, "filters": filters}


def _locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


_living: WeakSet[LiveRules] = WeakSet()


def _restart_all() -> None:
    if loses_threads_after_fork():
        return  # the first use starts them
    for live in list(_living):
        if live._pid:
            live.restart()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart_all)
